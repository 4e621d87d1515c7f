"""Reader of training logs, for all supported tools."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from repro.errors import ReproError, of_file
from repro.logs.reading import read_text
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
from repro.logs.training.runs import LoggedRun, logged_run
from repro.logs.training.steps import Line, Step, ToolLog, lines_of

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
# An iteration number that goes back by more begins another run; ranks may be printed out of order.
_BACK = 2
# Iterations whose number goes back more often than this share are out of order, not many runs.
_SHUFFLED, _FEWEST_BACK = 0.35, 4
_OF_NUMBERS = "0123456789.,"
_NUMBERS = re.compile(r"\d")
_LIKELY = re.compile(r"\b(?:iter(?:ation)?|step|batch|epoch|throughput|tokens|samples)\b", re.I)
_LAUNCHED = re.compile(r"--nproc[_-]per[_-]node[= ](\d{1,4})\b")
_LAUNCHED_NODES = re.compile(r"--nnodes[= ](\d{1,6})\b(?!:)")
_DEVICE = re.compile(
    r"\b(?:NVIDIA (?:GeForce )?|AMD Instinct )"
    r"([A-Z]{1,3}\d{2,4}[A-Z]{0,2}\b(?:[ -](?:SXM\d?|PCIe|NVL))?(?:[ -]\d{2,3}GB)?)"
)


@dataclass(frozen=True)
class TrainingLog:
    """Runs of a log, the lines that were recognized, all of them, and the GPU as it is printed."""

    runs: tuple[LoggedRun, ...]
    recognized: int
    lines: int
    device: str | None


def read_training_file(path: Path) -> tuple[str, TrainingLog]:
    """Read a log from a file, and return its text beside it.

    Raises
    ------
    ReproError
        As `read_training_log`, or the file cannot be read; the message names the file.
    """
    with of_file(path, "give the whole output of a training run"):
        text = read_text(path)
        return text, read_training_log(text)


def read_training_log(text: str) -> TrainingLog:
    """Read a training log; the tool is recognized by the content.

    Raises
    ------
    ReproError
        No line is an iteration; the message has the nearest one.
    """
    # A number that ends the file may be cut; it is left out if iterations remain.
    for kept in dict.fromkeys((text.rstrip(_OF_NUMBERS), text)):
        lines = lines_of(kept)
        logs = [read(lines) for read in _READERS.values()]
        found = [log for log in logs if log.steps]
        if found:
            break
    if not found:
        raise ReproError(_nothing(lines, logs))
    # Two formats of one job state the same iterations: the one with more of them counts.
    best = max(found, key=_timed)
    parts, notes = _split(best)
    runs: list[LoggedRun] = []
    stated: Mapping[str, float] = {}
    arguments = ""
    ends = [min(step.line for step in part) for part in parts[1:]] + [lines[-1].number + 1]
    for part, own, end in zip(parts, _lines_of_runs(lines, parts), ends, strict=True):
        own_stated, own_arguments = _facts(best.tool, own, logs if len(parts) == 1 else None)
        # A restart that states nothing is one of the run before it.
        if own_stated or own_arguments:
            stated, arguments = own_stated, own_arguments
        timers = tuple(timer for timer in best.timers if timer.line < end)
        run = replace(best, steps=tuple(part), timers=timers, stated=stated, arguments=arguments)
        runs.append(logged_run(run, own, notes))
    device = next((one[1] for line in lines if (one := _DEVICE.search(line.text))), None)
    recognized = len({step.line for step in best.steps})
    return TrainingLog(tuple(runs), recognized, lines[-1].number, device)


def _timed(log: ToolLog) -> tuple[int, int]:
    return sum(step.time_s is not None for step in log.steps), len(log.steps)


def _nothing(lines: Sequence[Line], logs: Sequence[ToolLog]) -> str:
    nearest = next(
        (line for line in lines if _LIKELY.search(line.text) and _NUMBERS.search(line.text)),
        next((line for line in lines if line.text.strip()), None),
    )
    count = lines[-1].number if lines else 0
    said = f"0 of {count} lines are an iteration of {', '.join(TOOLS)}"
    if nearest is None:
        return f"{said}; the file is empty"
    for log in logs:
        if log.stated:
            facts = ", ".join(f"{name} {value:g}" for name, value in log.stated.items())
            said += f"; {log.tool} states {facts}, but no time"
    return f"{said}; the nearest is line {nearest.number}: {nearest.text.strip()[:80]!r}"


def _lines_of_runs(lines: Sequence[Line], parts: Sequence[Sequence[Step]]) -> list[list[Line]]:
    """Return the lines of each run: those up to its last iteration, and the rest for the last."""
    ends = [max(step.line for step in part) for part in parts[:-1]] + [lines[-1].number]
    numbers = [line.number for line in lines]
    places = [0, *(bisect_right(numbers, end) for end in ends)]
    return [list(lines[first:last]) for first, last in pairwise(places)]


def _facts(
    tool: str, lines: Sequence[Line], logs: Sequence[ToolLog] | None
) -> tuple[dict[str, float], str]:
    """Return facts and arguments that lines state; those of the run's own tool count most."""
    if logs is None:
        logs = [read(lines) for read in _READERS.values()]
    stated = _launched(lines)
    own = next(log for log in logs if log.tool == tool)
    for log in (*logs, own):
        stated = {**stated, **log.stated}
    return stated, own.arguments


def _launched(lines: Sequence[Line]) -> dict[str, float]:
    """Return GPUs of a launcher's command line."""
    for line in lines:
        found = _LAUNCHED.search(line.text)
        if found and int(found[1]):
            nodes = _LAUNCHED_NODES.search(line.text)
            if nodes is None and "standalone" not in line.text and "--nnodes" in line.text:
                return {"gpus_per_node": float(found[1])}
            count = float(nodes[1]) if nodes else 1.0
            return {"gpus": count * float(found[1]), "gpus_per_node": float(found[1])}
    return {}


def _split(log: ToolLog) -> tuple[list[list[Step]], list[str]]:
    """Split steps into runs, where one begins or the number of the iteration goes back."""
    steps = log.steps
    numbered = [step.iteration for step in steps if step.iteration is not None]
    back = sum(later < earlier - _BACK for earlier, later in pairwise(numbered))
    if back >= _FEWEST_BACK and back > _SHUFFLED * len(numbered):
        ordered = sorted(steps, key=lambda step: step.iteration or 0)
        return [ordered], ["iterations are out of order; they are sorted by their number"]
    runs: list[list[Step]] = [[]]
    last: int | None = None
    previous = 0
    for step in steps:
        begun = bisect_right(log.starts, step.line) > bisect_right(log.starts, previous)
        number = step.iteration
        if runs[-1] and (begun or (number and last and number < last - _BACK)):
            runs.append([])
            last = None
        if number is not None:
            last = number if last is None else max(last, number)
        previous = step.line
        runs[-1].append(step)
    return runs, []
