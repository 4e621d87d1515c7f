"""The whole pipeline: `dvc repro` with progress, remaining time and the outputs to look at."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from repro import background
from repro.atomic import replace_text
from repro.catalog.reading import choose
from repro.catalog.studies.experiments import EXPERIMENTS, experiment
from repro.errors import ReproError
from repro.launch.following import follows
from repro.observe.environment import has_cpu_quota
from repro.paths import HOME, RESULTS, ROOT, require_clone
from repro.results.reference import OWN_REFERENCE

# Seconds by profile and stage.
_TIMES, _KEPT_TIMES = (folder / "stage_times.json" for folder in (RESULTS, OWN_REFERENCE))
_PROFILE = ROOT / "params" / "pipeline.yaml"
_DVC = ("dvc", "--wait-for-lock", "repro")
_PREMEASURE = (sys.executable, "-m", "repro.experiments.ahead")
_SINGLE_ITEM = "--single-item"  # Without the stages that it depends on.
_RUNNING = re.compile(r"Running stage '(.+)':")
_MEASURING = re.compile(r"^Measuring (\S+)$")
_UNCHANGED = re.compile(r"Stage '(.+)' didn't change")
# Suffixes of outputs that a user opens; a folder has none.
_VIEWABLE = ("", ".ipynb", ".png", ".html", ".nc")
_SHORTEST_SHOWN_S = 2.0
# Prior of the speed ratio: so many seconds in which both machines were equally fast.
_PRIOR_S = 60.0
# These stages need few others and run first, so that there is an early figure.
_FIRST, _SECOND = "first_look", ("notebooks", "resolve")
# Untimed stages, and notebooks that plot premeasured results, run in the background while ranks
# wait for links. `compression` is last because its notebook needs `losses`.
_TIMED = "experiment@"
_BACKGROUND = ("losses", "predictions", "validation")
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
    progress = _Progress(
        _stages(),
        times.get(chosen, {}),
        _read_times(_KEPT_TIMES).get(chosen, {}),
        background=() if has_cpu_quota() else _BACKGROUND,
    )
    try:
        return (
            _run_dvc(progress, _FIRST)
            or _run_dvc(progress, *_SECOND)
            or _premeasure(progress, chosen)
            or _run_dvc(progress)
        )
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        replace_text(_TIMES, json.dumps({**times, chosen: progress.times_s}, indent=1) + "\n")


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

    `times_s` are from the last run here, `reference_s` from the reference run. `background` stages
    run at idle priority, `premeasured` ones are measured before DVC runs them, and `left` ones have
    not started.
    """

    outputs: dict[str, list[str]]
    times_s: dict[str, float]
    reference_s: dict[str, float]
    background: tuple[str, ...]
    left: set[str] = field(init=False)
    premeasured: frozenset[str] = frozenset()
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
        left = self.left - set(self.background)
        if not (new := left - set(self.times_s)):
            return f"about {_duration(sum(self.times_s[name] for name in left))} left"
        if unknown := new - set(self.reference_s):
            return f"remaining time unknown: {len(unknown)} stages have never run"
        both = self.times_s.keys() & self.reference_s.keys()
        here_s, there_s = (
            _PRIOR_S + sum(times[name] for name in both)
            for times in (self.times_s, self.reference_s)
        )
        left_s = sum(self.times_s[name] for name in left - new)
        left_s += here_s / there_s * sum(self.reference_s[name] for name in new)
        return f"about {_duration(left_s)} left, estimated from the reference run"

    def end(self) -> str:
        """Record that the running stage has ended, and return the line to print."""
        taken_s = time.monotonic() - self.stage_began
        self.times_s[self.stage] = round(taken_s, 1)
        if taken_s < _SHORTEST_SHOWN_S:
            return ""
        took = f"{self.stage} took {_duration(taken_s)}"
        if self.stage in self.premeasured:
            return took
        viewable = self.viewable(self.stage)
        return f"{took}; {viewable}" if viewable else ""

    def viewable(self, stage: str) -> str:
        """Return a reference to the outputs of a stage that a user can open."""
        paths = [path for path in self.outputs[stage] if Path(path).suffix in _VIEWABLE]
        return f"see {', '.join(paths)}" if paths else ""


def _premeasure(progress: _Progress, profile: str) -> int:
    """Take all timed measurements in one process, while notebooks and untimed stages run.

    The process is `repro.experiments.ahead`. DVC runs the notebooks, which wait for its results,
    and the untimed stages at idle priority. A background stage that fails is rerun in the
    foreground, where its error is shown.
    """
    timed = [name for name in progress.outputs if name.startswith(_TIMED)]
    names = {
        Path(path).stem: stage
        for stage in _changed(timed)
        for path in progress.outputs[stage]
        if path.endswith(".nc")
    }
    if not names:
        return 0
    progress.premeasured = frozenset(names.values())
    with ExitStack() as stack:
        measuring = stack.enter_context(_started([*_PREMEASURE, profile, *names], os.environ))
        reporters = []
        if progress.background:
            _print(f"in the background: notebooks, {', '.join(progress.background)}")
            for stages, extra in ((timed, follows(measuring.pid)), (progress.background, {})):
                process = stack.enter_context(_run_in_background(stages, extra))
                reporters.append(Thread(target=_report, args=(progress, process), daemon=True))
                reporters[-1].start()
        if not (status := _stream(progress, measuring, _MEASURING, names)):
            for reporter in reporters:
                reporter.join()
        return status


def _changed(stages: list[str]) -> list[str]:
    """Return the stages that DVC would run, in order: a dependency has changed or will change."""
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        changed, written = repo.status(targets=stages), set[str]()
        found = []
        for stage in repo.index.stages:
            if stage.addressing in stages and (
                stage.addressing in changed
                or written & {dependency.fs_path for dependency in stage.deps}
            ):
                found.append(stage.addressing)
                written |= {output.fs_path for output in stage.outs}
    return found


def _run_in_background(
    stages: Sequence[str], environment: Mapping[str, str]
) -> AbstractContextManager["subprocess.Popen[str]"]:
    """Run stages with DVC at idle priority, without their dependencies, which others may lock."""
    return _started(
        [*_DVC, _SINGLE_ITEM, *stages],
        # Kernels start their own sessions, and run this module first.
        {**os.environ, **environment, "PYTHONSTARTUP": background.__file__},
        stderr=subprocess.DEVNULL,
        preexec_fn=background.run_in_background,
    )


def _report(progress: _Progress, process: "subprocess.Popen[str]") -> None:
    """Print the outputs of background stages, each when the next stage begins.

    The last stage has ended if the process succeeds.
    """
    finished = ""
    for line in _lines(process):
        if began := _RUNNING.search(line):
            _print(finished)
            viewable = progress.viewable(began[1])
            # A progress bar of the measuring process may be in this line.
            finished = viewable and f"\n{began[1]}: {viewable}"
    if process.wait() == 0:
        _print(finished)


def _run_dvc(progress: _Progress, *targets: str) -> int:
    """Run DVC, print its progress, and return its exit status."""
    with _started([*_DVC, *targets], os.environ) as process:
        return _stream(progress, process, _RUNNING, {})


def _stream(
    progress: _Progress,
    process: "subprocess.Popen[str]",
    begins: re.Pattern[str],
    names: Mapping[str, str],
) -> int:
    """Print a process's output with a line per stage, and return its exit status.

    `names` maps the process's names of stages to DVC's.
    """
    for line in _lines(process):
        began, unchanged = begins.search(line), _UNCHANGED.search(line)
        if (began or unchanged) and progress.stage:
            _print(progress.end())
            progress.stage = ""
        if began:
            _print(progress.begin(names.get(began[1], began[1])))
        elif unchanged:
            progress.left.discard(unchanged[1])
        else:
            print(line, end="", flush=True)
    status = process.wait()
    if progress.stage and status == 0:
        _print(progress.end())
    progress.stage = ""
    return status


def _lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


@contextmanager
def _started(
    command: list[str], environment: Mapping[str, str], **options: Any
) -> Iterator["subprocess.Popen[str]"]:
    """Run a command in its own session, and terminate it when this process is signalled.

    A signal raises KeyboardInterrupt here and is passed on, so that neither outlives the other.
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
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
    except FileNotFoundError:
        raise ReproError("dvc is not on the PATH; fix: source .venv/bin/activate") from None
    number = signal.SIGTERM
    try:
        started = True
        if received:
            raise KeyboardInterrupt(*received)
        yield process
    except KeyboardInterrupt as interrupted:
        number = signal.Signals(interrupted.args[0])
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, number)
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
