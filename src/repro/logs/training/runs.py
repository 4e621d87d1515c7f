"""Runs of a training log: their steady iterations, phases, and what is odd about them."""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import pandas as pd

from repro.logs.training.steps import Line, Step, Timer, ToolLog

# Messages in front of an iteration that takes longer, by what it then includes.
_PAUSES = {
    "checkpoint": re.compile(r"\bsav(?:ing|ed)\b.{0,40}\bcheckpoint|save-checkpoint", re.I),
    "evaluation": re.compile(
        r"\bvalidation loss\b|\bevaluat(?:ing|e|ion)\b|\bvalidate step:|\beval_loss\b|\bval loss\b",
        re.I,
    ),
}
KINDS = ("steady", "warm-up", *_PAUSES, "spike")
# An iteration that takes this much longer than the median is a spike; so are those of a warm-up.
_SPIKE = 1.2
# An iteration behind a checkpoint or an evaluation that takes this much longer includes it.
_AFTER_PAUSE = 1.05
# Change of the median between the first and the last third that is a drift.
_DRIFT = 0.05
# Lines after an iteration's, and before the first one's, in which its timers are.
_TIMER_LINES, _TIMER_LINES_BEFORE = 200, 5
# Throughputs have three digits at least, which tell numbers of GPUs up to this one apart.
_DIGITS, _MOST_COUNTED = 0.01, 48
# A wait for the last pipeline stage is part of this timer.
_WAITS, _LONG_WAIT = "backward-embedding-all-reduce", 0.1
# Values beyond any GPU's.
_MOST_TFLOPS, _LARGEST_MFU = 10_000.0, 1.0


@dataclass(frozen=True)
class LoggedRun:
    """One run of a log.

    Attributes
    ----------
    tool
        Tool that printed it.
    steps
        A row per iteration: the fields of `Step` that were printed, ranks of an iteration merged,
        with `kind`, one of `KINDS`.
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
        """Iterations without warm-up, checkpoints, evaluations and spikes."""
        return self.steps[self.steps.kind == "steady"]

    def middle(self, name: str) -> float | None:
        """Return the median of a field of `Step` over the steady iterations; None without one."""
        values = self.steady[name].dropna()
        return float(values.median()) if len(values) else None


def logged_run(log: ToolLog, lines: Sequence[Line], notes: Sequence[str]) -> LoggedRun:
    """Describe the run whose iterations, timers and facts a log has, and the lines of a file.

    `notes` are warnings about the file.
    """
    steps, warnings = log.steps, list(notes)
    frame = pd.DataFrame([vars(step) for step in steps])
    frame = frame.astype({name: float for name in frame if name != "running_mean"})
    frame = _merged(frame, warnings)
    frame = _believable(frame, warnings)
    stated = _with_gpus(frame, log.stated)
    frame = _completed(frame, stated, warnings)
    frame["kind"] = _kinds(frame, _pauses(frame, lines), warnings)
    phases = _phases(log.timers, steps, frame)
    total = frame.time_s[frame.kind == "steady"].median()
    if phases.get(_WAITS, 0.0) > _LONG_WAIT * total:
        warnings.append(f"{_WAITS} includes waiting for the last pipeline stage (the bubble)")
    return LoggedRun(log.tool, frame, phases, stated, log.arguments, tuple(warnings))


def _merged(frame: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Merge rows of one iteration, which several ranks printed: medians, never sums."""
    if frame.iteration.isna().all():
        return frame
    counts = frame.groupby("iteration", sort=False).size()
    if counts.max() > 1:
        warnings.append(
            f"up to {counts.max()} lines (of ranks, or of a redrawn bar) state one iteration; "
            "medians are taken"
        )
    numbers = frame.drop(columns="running_mean")
    merged = numbers.groupby("iteration", sort=False).median().reset_index()
    merged["running_mean"] = bool(frame.running_mean.any())
    return merged


def _believable(frame: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Drop values that no GPU can have."""
    frame = frame.copy()
    flops = frame.tflops_per_gpu
    if (flops > _MOST_TFLOPS).any():
        warnings.append(f"{flops.max():g} TFLOP/s per GPU is more than any GPU has; it is left out")
        frame["tflops_per_gpu"] = flops.where(flops <= _MOST_TFLOPS)
    mfu = frame.mfu
    wrong = (mfu <= 0) | (mfu > _LARGEST_MFU)
    if wrong.any():
        warnings.append(f"an MFU of {100 * mfu[wrong].iloc[0]:g} % is impossible; it is left out")
        frame["mfu"] = mfu.where(~wrong)
    return frame


def _with_gpus(frame: pd.DataFrame, stated: Mapping[str, float]) -> Mapping[str, float]:
    """Add the GPUs if throughputs of all and of one are printed with enough digits to tell them."""
    ratio = float((frame.tokens_per_s / frame.tokens_per_s_per_gpu).median())
    gpus = round(ratio) if ratio < _MOST_COUNTED else 0
    if "gpus" in stated or gpus < 1 or abs(ratio - gpus) > _DIGITS * ratio:
        return stated
    return {**stated, "gpus": float(gpus)}


def _completed(
    frame: pd.DataFrame, stated: Mapping[str, float], warnings: list[str]
) -> pd.DataFrame:
    """Compute times from throughputs and throughputs of a GPU from times, as far as sizes allow."""
    sizes = {name: stated.get(name, float("nan")) for name in ("global_batch", "seq", "gpus")}
    batch = frame.global_batch.fillna(sizes["global_batch"])
    tokens = batch * sizes["seq"]
    computed = {
        "time_s": [
            (batch / frame.samples_per_s, "sequences per second"),
            (tokens / frame.tokens_per_s, "tokens per second"),
            (tokens / frame.tokens_per_s_per_gpu / sizes["gpus"], "tokens per second"),
        ],
        "tokens_per_s_per_gpu": [(tokens / frame.time_s / sizes["gpus"], "the time")],
    }
    names = {"time_s": "seconds per iteration", "tokens_per_s_per_gpu": "tokens per second per GPU"}
    frame = frame.copy()
    for name, sources in computed.items():
        for values, source in sources:
            if frame[name].isna().all() and values.notna().any():
                frame[name] = values
                warnings.append(f"{names[name]} are computed from {source}")
    memory = stated.get("memory_bytes")
    if memory is not None:
        frame["memory_bytes"] = frame.memory_bytes.fillna(memory)
    return frame


def _pauses(frame: pd.DataFrame, lines: Sequence[Line]) -> list[str]:
    """Return what messages say that happened since the iteration before; empty if nothing."""
    paused = [
        (line.number, kind)
        for line in lines
        for kind, sign in _PAUSES.items()
        if sign.search(line.text)
    ]
    numbers = [number for number, _ in paused]
    found, last = [], 0.0
    for at in frame.line:
        between = paused[bisect_right(numbers, last) : bisect_right(numbers, at - 1)]
        found.append(between[0][1] if between else "")
        last = max(last, at)
    return found


def _pace(frame: pd.DataFrame) -> pd.Series:
    """Return what iterations are compared by: their time, or the inverse of a throughput."""
    for name in ("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "tflops_per_gpu"):
        if frame.time_s.isna().all() and frame[name].notna().any():
            return 1 / frame[name]
    return frame.time_s


def _kinds(frame: pd.DataFrame, pauses: Sequence[str], warnings: list[str]) -> list[str]:
    """Tell apart warm-up, steady iterations, pauses and spikes, and find a drift."""
    if frame.running_mean.any():
        warnings.append("values are means over many iterations; single ones cannot be told apart")
        return ["warm-up"] * (len(frame) - 1) + ["steady"]
    if len(frame) == 1:
        warnings.append("there is one line of iterations; a warm-up cannot be told apart")
        return ["steady"]
    pace = _pace(frame)
    usual = float(pace.median())
    slow = (pace > _SPIKE * usual).tolist()
    warm = 0
    while warm < len(slow) and slow[warm]:
        warm += 1
    # The first iterations compile, allocate and connect even where they are just below a spike.
    warm = max(warm, 1) if len(slow) > 2 else warm
    kinds = ["warm-up"] * warm
    for is_slow, pause, own in zip(slow[warm:], pauses[warm:], pace.iloc[warm:], strict=True):
        paused = bool(pause) and own > _AFTER_PAUSE * usual
        kinds.append(pause if paused else "spike" if is_slow else "steady")
    for kind in (*_PAUSES, "spike"):
        where = [at for at, own in enumerate(kinds) if own == kind]
        if where:
            often = {later - earlier for earlier, later in pairwise(where)}
            every = f", every {often.pop()} iterations" if len(often) == 1 else ""
            longer = float(pace.iloc[where].median()) / usual
            count = "1 iteration takes" if len(where) == 1 else f"{len(where)} iterations take"
            after = "" if kind == "spike" else f" after a message of {kind}"
            warnings.append(f"{count} {longer:.2f} times as long{after}{every}")
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
    """Return medians of timers over iterations but those of the warm-up.

    Timers follow the line of their iteration. An excerpt may have only timers in front of its one
    iteration, which are used then.
    """
    ordered = sorted(steps, key=lambda step: step.line)
    lines = [step.line for step in ordered]
    warm = set(frame.iteration[frame.kind == "warm-up"].dropna())
    by_name: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    for timer in timers:
        at = bisect_right(lines, timer.line) - 1
        if at < 0 and timer.line >= lines[0] - _TIMER_LINES_BEFORE:
            before.setdefault(timer.name, []).append(timer.time_s)
        elif (
            at >= 0 and timer.line <= lines[at] + _TIMER_LINES and ordered[at].iteration not in warm
        ):
            by_name.setdefault(timer.name, []).append(timer.time_s)
    if not by_name and len(frame) == 1:
        by_name = before
    return {name: float(median(values)) for name, values in by_name.items()}
