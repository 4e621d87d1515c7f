"""Run the whole pipeline: what runs, how much is done, how long the rest will take, what to look
at."""

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
from repro.observe.environment import is_rationed
from repro.paths import PARAMS, RESULTS, ROOT
from repro.results.reference import REFERENCE

# By profile and stage.
_TIMES, _KEPT_TIMES = (folder / "stage_times.json" for folder in (RESULTS, REFERENCE))
_PROFILE = PARAMS / "pipeline.yaml"
_DVC = ("dvc", "--wait-for-lock", "repro")
_AHEAD = (sys.executable, "-m", "repro.experiments.ahead")
_ALONE = "--single-item"  # without what a stage depends on
_RUNNING = re.compile(r"Running stage '(.+)':")
_MEASURING = re.compile(r"^Measuring (\S+)$")
_UNCHANGED = re.compile(r"Stage '(.+)' didn't change")
# What a reader would open, of what a stage leaves; without a suffix it is a folder.
_SHOWN = ("", ".ipynb", ".png", ".html", ".nc")
_SHORTEST_SHOWN_S = 2.0
# Beforehand this machine is taken to have been as fast as the reference run's in so many seconds.
_AS_FAST_S = 60.0
# What needs little else goes first, so that there is something to look at.
_FIRST, _SECOND = "first_look", ("notebooks", "resolve")
# Ranks of what is timed mostly wait for links; what is not timed goes beside them, as do notebooks
# that show what was measured ahead: the last needs losses, which have been trained by then.
_TIMED = (
    "experiment@",
    "collectives@",
    "sensitivity",
    "communication",
    "hierarchical_zero",
    "compression",
)
_BESIDE = ("losses", "predictions", "validation")
# The exit status of what was interrupted, as shells have it.
_INTERRUPTED = 130


def run_pipeline(profile: str | None) -> int:
    """Run `dvc repro` and tell how it goes; its exit status.

    Parameters
    ----------
    profile
        How thoroughly to measure, written into `params/pipeline.yaml`; None: as it says.

    Raises
    ------
    ReproError
        The profile is unknown, or there is no DVC, or no pipeline.
    """
    if profile is not None:
        choose("profile", profile, experiment(EXPERIMENTS[0]).profiles)
        text = _PROFILE.read_text(encoding="utf-8")
        replace_text(_PROFILE, re.sub(r"(?m)^profile: .*$", f"profile: {profile}", text))
    chosen = yaml.safe_load(_PROFILE.read_text(encoding="utf-8"))["profile"]
    known = _read(_TIMES)
    course = _Course(
        _stages(),
        known.get(chosen, {}),
        _read(_KEPT_TIMES).get(chosen, {}),
        beside=() if is_rationed() else _BESIDE,
    )
    try:
        return (
            _follow(course, _FIRST)
            or _follow(course, *_SECOND)
            or _measure_ahead(course, chosen)
            or _follow(course)
        )
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        replace_text(_TIMES, json.dumps({**known, chosen: course.times_s}, indent=1) + "\n")


def keep_times() -> Path:
    """Keep what stages took here beside the reference run, for machines that have run none.

    Raises
    ------
    ReproError
        None has run here.
    """
    if not _TIMES.exists():
        raise ReproError(f"{_TIMES}: no stage has run here; run `make repro`")
    replace_text(_KEPT_TIMES, _TIMES.read_text(encoding="utf-8"))
    return _KEPT_TIMES


def _read(path: Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    times: dict[str, dict[str, float]] = json.loads(path.read_text(encoding="utf-8"))
    return times


@dataclass
class _Course:
    """How far the stages are; `times_s` is what each took, the last time it ran, `reference_s` what
    it took the reference run, `beside` those that run beside others here, and `ahead` those that
    are measured before DVC runs them."""

    outputs: dict[str, list[str]]
    times_s: dict[str, float]
    reference_s: dict[str, float]
    beside: tuple[str, ...]
    left: set[str] = field(init=False)
    ahead: frozenset[str] = frozenset()
    began: float = field(default_factory=time.monotonic)
    stage: str = ""
    stage_began: float = 0.0

    def __post_init__(self) -> None:
        self.left = set(self.outputs)

    def begin(self, stage: str) -> str:
        """A stage begins; what to say of it."""
        self.stage, self.stage_began = stage, time.monotonic()
        done = len(self.outputs) - len(self.left) + 1
        gone = f"{_duration(time.monotonic() - self.began)} gone"
        rest = self._rest()
        self.left.discard(stage)
        return f"[{done}/{len(self.outputs)}] {stage}: {gone}, {rest}"

    def _rest(self) -> str:
        """How long what is left will take: as the last time, else as the reference run, times what
        stages took here over what they took that run."""
        left = self.left - set(self.beside)
        if not (new := left - set(self.times_s)):
            return f"about {_duration(sum(self.times_s[name] for name in left))} left"
        if unknown := new - set(self.reference_s):
            return f"no earlier run tells how long {len(unknown)} of the rest take"
        both = self.times_s.keys() & self.reference_s.keys()
        here_s, there_s = (
            _AS_FAST_S + sum(times[name] for name in both)
            for times in (self.times_s, self.reference_s)
        )
        left_s = sum(self.times_s[name] for name in left - new)
        left_s += here_s / there_s * sum(self.reference_s[name] for name in new)
        return f"about {_duration(left_s)} left, from what the reference run took"

    def end(self) -> str:
        """The stage that runs has ended; what to say of it."""
        taken_s = time.monotonic() - self.stage_began
        self.times_s[self.stage] = round(taken_s, 1)
        if taken_s < _SHORTEST_SHOWN_S:
            return ""
        took = f"{self.stage} took {_duration(taken_s)}"
        if self.stage in self.ahead:
            return took
        look = self.look(self.stage)
        return f"{took}; {look}" if look else ""

    def look(self, stage: str) -> str:
        """What there is to look at of a stage that ran."""
        shown = [path for path in self.outputs[stage] if Path(path).suffix in _SHOWN]
        return f"look at {', '.join(shown)}" if shown else ""


def _measure_ahead(course: _Course, profile: str) -> int:
    """Measure what timed notebooks will ask for, in one process (`repro.experiments.ahead`), while
    DVC runs these behind it, and in the time that links leave what else goes beside.

    What does not go well beside is run again in its turn, and says why then.
    """
    timed = [name for name in course.outputs if name.startswith(_TIMED)]
    names = {
        Path(path).stem: stage
        for stage in _changed(timed)
        for path in course.outputs[stage]
        if path.endswith(".nc")
    }
    if not names:
        return 0
    course.ahead = frozenset(names.values())
    with ExitStack() as stack:
        measuring = stack.enter_context(_started([*_AHEAD, profile, *names], os.environ))
        tellers = []
        if course.beside:
            _say(f"beside experiments: their notebooks, {', '.join(course.beside)}")
            for stages, how in ((timed, follows(measuring.pid)), (course.beside, {})):
                lane = stack.enter_context(_beside(stages, how))
                tellers.append(Thread(target=_tell, args=(course, lane), daemon=True))
                tellers[-1].start()
        if not (status := _hear(course, measuring, _MEASURING, names)):
            for teller in tellers:
                teller.join()
        return status


def _changed(stages: list[str]) -> list[str]:
    """Those that DVC would run, in their order: what they depend on has changed, or will."""
    from dvc.repo import Repo

    with Repo(str(ROOT)) as repo:
        changed, made = repo.status(targets=stages), set[str]()
        found = []
        for stage in repo.index.stages:
            if stage.addressing in stages and (
                stage.addressing in changed or made & {one.fs_path for one in stage.deps}
            ):
                found.append(stage.addressing)
                made |= {one.fs_path for one in stage.outs}
    return found


def _beside(
    stages: Sequence[str], environment: Mapping[str, str]
) -> AbstractContextManager["subprocess.Popen[str]"]:
    """DVC on stages that give way, whatever they depend on, which others would lock."""
    return _started(
        [*_DVC, _ALONE, *stages],
        # Kernels begin sessions, and run this first.
        {**os.environ, **environment, "PYTHONSTARTUP": background.__file__},
        stderr=subprocess.DEVNULL,
        preexec_fn=background.run_in_background,
    )


def _tell(course: _Course, process: "subprocess.Popen[str]") -> None:
    """Say what can be looked at, of stages that are run beside: each has ended when another begins,
    or the process well."""
    look = ""
    for line in _lines(process):
        if began := _RUNNING.search(line):
            _say(look)
            look = course.look(began[1])
            # A bar of what is measured meanwhile may stand in this line.
            look = look and f"\n{began[1]}: {look}"
    if process.wait() == 0:
        _say(look)


def _follow(course: _Course, *targets: str) -> int:
    """Run DVC, and say more where it begins and ends a stage."""
    with _started([*_DVC, *targets], os.environ) as process:
        return _hear(course, process, _RUNNING, {})


def _hear(
    course: _Course,
    process: "subprocess.Popen[str]",
    begins: re.Pattern[str],
    names: Mapping[str, str],
) -> int:
    """What a process says, and more where a stage begins and ends; its exit status. It may have
    names of its own for stages."""
    for line in _lines(process):
        began, unchanged = begins.search(line), _UNCHANGED.search(line)
        if (began or unchanged) and course.stage:
            _say(course.end())
            course.stage = ""
        if began:
            _say(course.begin(names.get(began[1], began[1])))
        elif unchanged:
            course.left.discard(unchanged[1])
        else:
            print(line, end="", flush=True)
    status = process.wait()
    if course.stage and status == 0:
        _say(course.end())
    course.stage = ""
    return status


def _lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    yield from process.stdout


@contextmanager
def _started(
    command: list[str], environment: Mapping[str, str], **how: Any
) -> Iterator["subprocess.Popen[str]"]:
    """Run something in a session of its own, which hears only from this process: that passes on
    whatever tells it to end, a KeyboardInterrupt here, so that neither goes on without the other.
    """
    told: list[int] = []
    known = False

    def tell(number: int, _: object) -> None:
        told.append(number)
        # A process that is about to start could not be told.
        if known:
            raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup` asks that one is ignored, and behind an `&` a shell that another is.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, tell)
    try:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            **how,
        )
    except FileNotFoundError:
        raise ReproError("dvc is not on the PATH; activate the environment") from None
    number = signal.SIGTERM
    try:
        known = True
        if told:
            raise KeyboardInterrupt(*told)
        yield process
    except KeyboardInterrupt as interrupt:
        number = signal.Signals(interrupt.args[0])
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, number)
            process.wait()


def _say(words: str) -> None:
    if words:
        print(words, flush=True)


def _stages() -> dict[str, list[str]]:
    """The outputs of every stage, in the order of the file."""
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
