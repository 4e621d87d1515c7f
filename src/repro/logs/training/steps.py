"""Steps that a training log prints, and the lines and numbers that they are read from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Escape sequences of terminals.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_SCALES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
# Longer lines hold data, not messages.
_LONGEST_LINE = 20_000


@dataclass(frozen=True)
class Line:
    """Line of a log: its number from 1, and its text without escape sequences."""

    number: int
    text: str


@dataclass(frozen=True)
class Step:
    """Values of one iteration, or of several in the mean; None where the tool prints none.

    Attributes
    ----------
    line
        Number of the line.
    iteration
        Number of the iteration, as printed.
    time_s
        Seconds per iteration.
    tokens_per_s, tokens_per_s_per_gpu, samples_per_s
        Throughput of all GPUs, of one, and sequences of all.
    tflops_per_gpu
        Throughput of one GPU in TFLOP/s, by the tool's own count of FLOPs.
    mfu
        Model FLOPs utilisation as a fraction, by the tool's own peak.
    memory_bytes
        Peak memory of a GPU.
    global_batch
        Sequences of the iteration.
    running_mean
        Whether values are means since the start, so that single iterations cannot be told apart.
    """

    line: int
    iteration: int | None = None
    time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    global_batch: float | None = None
    running_mean: bool = False


@dataclass(frozen=True)
class Timer:
    """Timer of an iteration in seconds, as its tool calls it."""

    line: int
    name: str
    time_s: float


@dataclass(frozen=True)
class ToolLog:
    """Everything that one tool printed.

    `stated` are facts by field of `repro.catalog.jobs.Job`, `arguments` is the text of Megatron's
    arguments.
    """

    tool: str
    steps: tuple[Step, ...]
    timers: tuple[Timer, ...] = ()
    stated: Mapping[str, float] = field(default_factory=dict)
    arguments: str = ""


def lines_of(text: str) -> list[Line]:
    """Split a text into lines; a progress bar that is redrawn has a line per state."""
    found = []
    for number, row in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        for part in row.split("\r"):
            if part and len(part) <= _LONGEST_LINE:
                found.append(Line(number, _ESCAPES.sub("", part) if "\x1b" in part else part))
    return found


def number(text: str | None) -> float | None:
    """Read a number such as 1,234.5, 11.4K or 1.2e+03; None if it is none."""
    if text is None:
        return None
    text = text.strip()
    scale = 1.0
    if text[-1:] in _SCALES and text[-1:]:
        scale, text = _SCALES[text[-1]], text[:-1].strip()
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", "")) * scale
    return value if abs(value) < 1e30 else None


def positive(text: str | None) -> float | None:
    """Read a number above 0; None if it is none."""
    value = number(text)
    return value if value is not None and value > 0 else None


def whole(text: str | None) -> int | None:
    """Read a whole number of an iteration; None if it is none."""
    value = number(text)
    return int(value) if value is not None and 0 <= value < 1e15 else None


def labelled(text: str, separator: str = "|") -> dict[str, str]:
    """Return the values of `name: value | name: value`, by name in lower case."""
    pairs = (part.rpartition(":") for part in text.split(separator))
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
