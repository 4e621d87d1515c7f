"""The whole pipeline: `dvc repro` with progress, remaining time and the outputs to look at."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from repro.atomic import replace_text
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS, experiment
from repro.errors import ReproError
from repro.paths import HOME, RESULTS, ROOT, require_clone
from repro.results.reference import OWN_REFERENCE
from repro.testbed.kernel import die_with_parent

# Seconds by profile and stage.
_TIMES, _KEPT_TIMES = (folder / "stage_times.json" for folder in (RESULTS, OWN_REFERENCE))
_PROFILE = ROOT / "params" / "pipeline.yaml"
_DVC = ("dvc", "--wait-for-lock", "repro")
_RUNNING = re.compile(r"Running stage '(.+)':")
_UNCHANGED = re.compile(r"Stage '(.+)' didn't change")
# Suffixes of outputs that a user opens; a folder has none.
_VIEWABLE = ("", ".ipynb", ".png", ".html", ".nc")
_SHORTEST_SHOWN_S = 2.0
# Prior of the speed ratio: so many seconds in which both machines were equally fast.
_PRIOR_S = 60.0
# This stage needs few others and runs first, so that there is an early figure.
_FIRST = "first_look"
# Exit status of an interrupted process, as in shells.
_INTERRUPTED = 130


def run_pipeline(profile: str | None) -> int:
    """Run `dvc repro`, print its progress, and return its exit status.

    Parameters
    ----------
    profile
        Run size, which is stored in `params/pipeline.yaml`. None: the stored one.

    Raises
    ------
    ReproError
        The profile is unknown, or `dvc` is not on the PATH.
    """
    if require_clone("repro pipeline") != HOME:
        raise ReproError(f"REPRO_HOME is {HOME}; the pipeline writes to its clone; fix: unset it")
    if profile is not None:
        choose("profile", profile, experiment(EXPERIMENTS[0]).profiles)
        text = _PROFILE.read_text(encoding="utf-8")
        replace_text(_PROFILE, re.sub(r"(?m)^profile: .*$", f"profile: {profile}", text))
    chosen = yaml.safe_load(_PROFILE.read_text(encoding="utf-8"))["profile"]
    times = _read_times(_TIMES)
    kept = _read_times(_KEPT_TIMES).get(chosen, {})
    _remove_damaged_lock(ROOT / "dvc.lock")
    progress = _Progress(_stages(), times.get(chosen, {}), kept)
    try:
        return _run_dvc(progress, _FIRST) or _run_dvc(progress)
    except KeyboardInterrupt as interrupted:
        if interrupted.args in ((), (signal.SIGINT,)):
            raise
        return _INTERRUPTED
    finally:
        replace_text(_TIMES, json.dumps({**times, chosen: progress.times_s}, indent=1) + "\n")


def _remove_damaged_lock(lock: Path) -> None:
    """Remove DVC's record of finished stages if DVC was killed while it wrote it."""
    if not lock.exists():
        return
    try:
        content = yaml.safe_load(lock.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        content = None
    if not isinstance(content, dict) or "schema" not in content:
        lock.unlink()
        _print(
            f"{lock.name} was damaged when DVC was killed: removed; stages run again, finished "
            "measurements are in results/store"
        )


def keep_times() -> Path:
    """Copy the stages' times to the reference run, for estimates on machines without a run.

    Raises
    ------
    ReproError
        No stage has run here.
    """
    if not _TIMES.exists():
        raise ReproError(f"{_TIMES}: no stage has run here; fix: make repro")
    replace_text(_KEPT_TIMES, _TIMES.read_text(encoding="utf-8"))
    return _KEPT_TIMES


def _read_times(path: Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    times: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return times


@dataclass
class _Progress:
    """Progress through the stages; outputs and seconds are by stage.

    `times_s` are from the last run here, `reference_s` from the reference run; `left` are the
    stages that have not started.
    """

    outputs: dict[str, list[str]]
    times_s: dict[str, float]
    reference_s: dict[str, float]
    left: set[str] = field(init=False)
    began: float = field(default_factory=time.monotonic)
    stage: str = ""
    stage_began: float = 0.0

    def __post_init__(self) -> None:
        self.left = set(self.outputs)

    def begin(self, stage: str) -> str:
        """Record that a stage begins, and return the line to print."""
        self.stage, self.stage_began = stage, time.monotonic()
        done = len(self.outputs) - len(self.left) + 1
        elapsed = f"{_duration(time.monotonic() - self.began)} elapsed"
        remaining = self._remaining()
        self.left.discard(stage)
        return f"[{done}/{len(self.outputs)}] {stage}: {elapsed}, {remaining}"

    def _remaining(self) -> str:
        """Return the remaining time: each stage takes as long as in its last run here.

        A stage that never ran here takes its time of the reference run, scaled by the ratio of
        the times of stages that both ran.
        """
        if not (new := self.left - set(self.times_s)):
            return f"about {_duration(sum(self.times_s[name] for name in self.left))} left"
        if unknown := new - set(self.reference_s):
            return f"remaining time unknown: {len(unknown)} stages have never run"
        both = self.times_s.keys() & self.reference_s.keys()
        here_s, there_s = (
            _PRIOR_S + sum(times[name] for name in both)
            for times in (self.times_s, self.reference_s)
        )
        left_s = sum(self.times_s[name] for name in self.left - new)
        left_s += here_s / there_s * sum(self.reference_s[name] for name in new)
        return f"about {_duration(left_s)} left, estimated from the reference run"

    def end(self) -> str:
        """Record that the running stage has ended, and return the line to print."""
        taken_s = time.monotonic() - self.stage_began
        self.times_s[self.stage] = round(taken_s, 1)
        if taken_s < _SHORTEST_SHOWN_S:
            return ""
        paths = [path for path in self.outputs[self.stage] if Path(path).suffix in _VIEWABLE]
        viewable = f"; see {', '.join(paths)}" if paths else ""
        return f"{self.stage} took {_duration(taken_s)}{viewable}"


def _run_dvc(progress: _Progress, *targets: str) -> int:
    """Run DVC, print its output with a line per stage, and return its exit status."""
    with _started([*_DVC, *targets]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            began, unchanged = _RUNNING.search(line), _UNCHANGED.search(line)
            if (began or unchanged) and progress.stage:
                _print(progress.end())
                progress.stage = ""
            if began:
                _print(progress.begin(began[1]))
            elif unchanged:
                progress.left.discard(unchanged[1])
            else:
                print(line, end="", flush=True)
        status = process.wait()
        if progress.stage and status == 0:
            _print(progress.end())
        progress.stage = ""
        return status


@contextmanager
def _started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """Run a command in its own session, and terminate it when this process is signalled.

    A signal raises KeyboardInterrupt here, so that neither outlives the other. If one is killed,
    the kernel or this process terminates the other.
    """
    received: list[int] = []
    started = False

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        # A process that is about to start cannot receive the signal.
        if started:
            raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup` ignores SIGHUP, and a shell ignores SIGINT of commands followed by `&`.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
    except FileNotFoundError:
        raise ReproError("dvc is not on the PATH; fix: source .venv/bin/activate") from None
    try:
        started = True
        if received:
            raise KeyboardInterrupt(*received)
        yield process
    finally:
        # Stages of a DVC that was killed are still in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _print(line: str) -> None:
    if line:
        print(line, flush=True)


def _stages() -> dict[str, list[str]]:
    """Return the outputs of every stage, in the order of `dvc.yaml`."""
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        stages = [stage for stage in repo.index.stages if stage.cmd]
        return {
            stage.addressing: [_relative(Path(out.fs_path)) for out in stage.outs]
            for stage in stages
        }


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
