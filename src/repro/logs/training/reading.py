"""Reader of training logs, for all supported tools: runs, their steady iterations, what is odd."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import pandas as pd

from repro.errors import ReproError
from repro.logs.training import (
    composer,
    deepspeed,
    hf_trainer,
    megatron,
    mlperf,
    nanogpt,
    nanotron,
    nemo,
    torchtitan,
)
from repro.logs.training.steps import Line, Step, Timer, ToolLog, lines_of

_READERS: Mapping[str, Callable[[Sequence[Line]], ToolLog]] = {
    reader.TOOL: reader.read
    for reader in (
        megatron,
        nemo,
        deepspeed,
        torchtitan,
        composer,
        nanotron,
        mlperf,
        nanogpt,
        hf_trainer,
    )
}
TOOLS = tuple(_READERS)
KINDS = ("steady", "warm-up", "spike")
# An iteration that takes this much longer than the median is a spike; so are those of a warm-up.
_SPIKE = 1.2
# Change of the median between the first and the last third that is a drift.
_DRIFT = 0.05
# An iteration number that goes back by more begins another run; ranks may be printed out of order.
_BACK = 2
# Lines after an iteration's in which its timers are.
_TIMER_LINES = 200
# Values beyond any GPU's.
_MOST_TFLOPS, _LARGEST_MFU = 10_000.0, 1.0
_NUMBERS = re.compile(r"\d")
_LIKELY = re.compile(r"\b(?:iter(?:ation)?|step|batch|epoch|throughput|tokens|samples)\b", re.I)
_LAUNCHED = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)")
_LAUNCHED_NODES = re.compile(r"--nnodes[= ](\d+)\b(?!:)")
_DEVICE = re.compile(
    r"\bNVIDIA (?:GeForce )?([A-Z]{1,3}\d{2,4}[A-Z]{0,2}(?:[ -](?:SXM\d?|PCIe|NVL))?)"
)


@dataclass(frozen=True)
class LoggedRun:
    """One run of a log.

    Attributes
    ----------
    tool
        Tool that printed it.
    steps
        A row per iteration: the fields of `Step` that were printed, ranks of an iteration merged,
        with `kind` of `warm-up`, `steady` and `spike`.
    phases_s
        Timers by name, in seconds: medians over the steady iterations.
    stated
        Facts that the log states, by field of `repro.catalog.jobs.Job`; also `dp`, `nodes` and
        `memory_bytes`.
    arguments
        Megatron's arguments as text, if it printed them.
    warnings
        What is odd, one phrase each.
    """

    tool: str
    steps: pd.DataFrame
    phases_s: Mapping[str, float]
    stated: Mapping[str, float]
    arguments: str
    warnings: tuple[str, ...]

    @property
    def steady(self) -> pd.DataFrame:
        """Iterations that are neither warm-up nor spikes."""
        return self.steps[self.steps.kind == "steady"]

    def middle(self, name: str) -> float | None:
        """Return the median of a field of `Step` over the steady iterations; None without one."""
        values = self.steady[name].dropna()
        return float(values.median()) if len(values) else None


@dataclass(frozen=True)
class TrainingLog:
    """Runs of a log, the lines that were recognized and all of them."""

    runs: tuple[LoggedRun, ...]
    recognized: int
    lines: int
    device: str | None


def read_training_log(text: str) -> TrainingLog:
    """Read a training log; the tool is recognized by the content.

    Raises
    ------
    ReproError
        No line is an iteration; the message has the nearest one.
    """
    lines = lines_of(text)
    found = [log for log in (read(lines) for read in _READERS.values()) if log.steps]
    if not found:
        raise ReproError(_nothing(lines))
    # Two formats of one job state the same iterations: the one with more of them counts.
    best = max(
        found, key=lambda log: (sum(step.time_s is not None for step in log.steps), len(log.steps))
    )
    stated = {**_launched(lines), **best.stated}
    for other in found:
        stated = {**other.stated, **stated}
    best = replace(best, stated=stated)
    runs = tuple(_run(best, part) for part in _split(best.steps))
    device = next((one[1] for line in lines if (one := _DEVICE.search(line.text))), None)
    return TrainingLog(runs, len({step.line for step in best.steps}), len(lines), device)


def _timed(log: ToolLog) -> tuple[int, int]:
    return sum(step.time_s is not None for step in log.steps), len(log.steps)


def _nothing(lines: Sequence[Line]) -> str:
    nearest = next(
        (line for line in lines if _LIKELY.search(line.text) and _NUMBERS.search(line.text)),
        next((line for line in lines if line.text.strip()), None),
    )
    said = f"0 of {len(lines)} lines are an iteration of {', '.join(TOOLS)}"
    if nearest is None:
        return f"{said}; the file is empty"
    return f"{said}; the nearest is line {nearest.number}: {nearest.text.strip()[:80]!r}"


def _launched(lines: Sequence[Line]) -> dict[str, float]:
    """Return GPUs of a launcher's command line."""
    for line in lines:
        if found := _LAUNCHED.search(line.text):
            nodes = _LAUNCHED_NODES.search(line.text)
            if nodes is None and "standalone" not in line.text and "--nnodes" in line.text:
                return {"gpus_per_node": float(found[1])}
            count = float(nodes[1]) if nodes else 1.0
            return {"gpus": count * float(found[1]), "gpus_per_node": float(found[1])}
    return {}


def _split(steps: Sequence[Step]) -> list[list[Step]]:
    """Split steps into runs, where the number of the iteration goes back."""
    runs: list[list[Step]] = [[]]
    last: int | None = None
    for step in steps:
        if step.iteration is not None:
            if last is not None and step.iteration < last - _BACK:
                runs.append([])
                last = None
            last = step.iteration if last is None else max(last, step.iteration)
        runs[-1].append(step)
    return runs


def _run(log: ToolLog, steps: Sequence[Step]) -> LoggedRun:
    warnings: list[str] = []
    frame = pd.DataFrame([vars(step) for step in steps])
    frame = _merged(frame, warnings)
    frame = _believable(frame, warnings)
    frame["kind"] = _kinds(frame, warnings)
    last = max(step.line for step in steps)
    first = min(step.line for step in steps)
    timers = [timer for timer in log.timers if first <= timer.line <= last + _TIMER_LINES]
    return LoggedRun(
        log.tool,
        frame,
        _phases(timers, steps, frame),
        log.stated,
        log.arguments,
        tuple(warnings),
    )


def _merged(frame: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Merge rows of one iteration, which several ranks printed: medians, never sums."""
    if frame.iteration.isna().all():
        return frame
    counts = frame.groupby("iteration", sort=False).size()
    if counts.max() > 1:
        warnings.append(f"up to {counts.max()} ranks printed an iteration; medians are taken")
    numbers = frame.drop(columns="running_mean").astype(float)
    merged = numbers.groupby("iteration", sort=False).median().reset_index()
    merged["running_mean"] = bool(frame.running_mean.any())
    return merged


def _believable(frame: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Drop values that no GPU can have."""
    frame = frame.copy()
    flops = frame.tflops_per_gpu.astype(float)
    if (flops > _MOST_TFLOPS).any():
        warnings.append(f"{flops.max():g} TFLOP/s per GPU is more than any GPU has; it is left out")
        frame["tflops_per_gpu"] = flops.where(flops <= _MOST_TFLOPS)
    mfu = frame.mfu.astype(float)
    wrong = (mfu <= 0) | (mfu > _LARGEST_MFU)
    if wrong.any():
        warnings.append(f"an MFU of {100 * mfu[wrong].iloc[0]:g} % is impossible; it is left out")
        frame["mfu"] = mfu.where(~wrong)
    return frame


def _pace(frame: pd.DataFrame) -> pd.Series:
    """Return what iterations are compared by: their time, or the inverse of a throughput."""
    time_s = frame.time_s.astype(float)
    for name in ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu"):
        if time_s.notna().any():
            break
        time_s = 1 / frame[name].astype(float)
    return time_s


def _kinds(frame: pd.DataFrame, warnings: list[str]) -> list[str]:
    """Tell warm-up, steady iterations and spikes apart, and find a drift."""
    pace = _pace(frame)
    if pace.notna().sum() < 2 or frame.running_mean.any():
        if frame.running_mean.any():
            warnings.append(
                "values are means over many iterations; single ones cannot be told apart"
            )
            return ["warm-up"] * (len(frame) - 1) + ["steady"]
        return ["steady"] * len(frame)
    usual = float(pace.median())
    slow = (pace > _SPIKE * usual).tolist()
    warm = 0
    while warm < len(slow) and slow[warm]:
        warm += 1
    # The first iterations compile, allocate and connect even where they are just below a spike.
    warm = max(warm, 1) if len(slow) > 2 else warm
    kinds = ["warm-up"] * warm + ["spike" if one else "steady" for one in slow[warm:]]
    spikes = [at for at, kind in enumerate(kinds) if kind == "spike"]
    if spikes:
        often = {later - earlier for earlier, later in pairwise(spikes)}
        every = f", every {often.pop()} iterations" if len(often) == 1 else ""
        longer = float(pace.iloc[spikes].median()) / usual
        warnings.append(f"{len(spikes)} iterations take {longer:.2f} times as long{every}")
    steady = pace[[kind == "steady" for kind in kinds]].dropna().tolist()
    third = len(steady) // 3
    if third >= 3:
        change = median(steady[-third:]) / median(steady[:third]) - 1
        if abs(change) > _DRIFT:
            warnings.append(
                f"drift: the last third takes {100 * change:+.0f} % of the first third's time"
            )
    return kinds


def _phases(
    timers: Sequence[Timer], steps: Sequence[Step], frame: pd.DataFrame
) -> dict[str, float]:
    """Return medians of timers over steady iterations, whose lines their timers follow."""
    lines = [step.line for step in steps]
    warm = set(frame.iteration[frame.kind == "warm-up"].dropna())
    by_name: dict[str, list[float]] = {}
    for timer in timers:
        at = bisect_right(lines, timer.line) - 1
        if at >= 0 and steps[at].iteration not in warm:
            by_name.setdefault(timer.name, []).append(timer.time_s)
    return {name: float(median(values)) for name, values in by_name.items()}
