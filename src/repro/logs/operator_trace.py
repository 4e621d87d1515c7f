"""Read traces of PyTorch's profiler: operators with their shapes, between collectives.

Keys are those of torch/csrc/profiler (`record_shapes=True`); the trace is one rank's.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.catalog.studies.operator_benchmarks import (
    COLLECTIVES,
    Sizes,
    benchmark_of,
    collective_bytes,
)
from repro.errors import ReproError
from repro.logs.reading import read_text
from repro.logs.truncated_json import read_json

# Stand for what lies between operators: Python and autograd; of those that compute nothing.
HOST, HOST_OF_VIEW = "host", "host of a view"
HOSTS = (HOST, HOST_OF_VIEW)
# Around what the backward pass runs; and a number that an operator shares with its step there, and
# with what comes before it without being recorded.
_ENGINE, _NUMBER = "autograd::engine::", "Sequence number"
_VIEWS = (
    *("view", "view_as", "reshape", "_reshape_alias", "flatten", "unflatten", "t", "transpose"),
    *("permute", "select", "slice", "narrow", "unsqueeze", "squeeze", "expand", "expand_as"),
    *("detach", "as_strided", "split", "split_with_sizes", "chunk", "unbind", "alias"),
)


@dataclass(frozen=True)
class TracedOperator:
    """Calls of one operator on the same sizes in the same segment.

    Attributes
    ----------
    segment
        Collectives among several ranks divide an iteration into segments, each of which ends with
        one.
    operator, sizes
        As in `repro.catalog.studies.operator_benchmarks`, without sizes where no microbenchmark
        stands for it; or one of `HOSTS`, of which there is a call for each outermost operator.
    autograd
        Whether autograd records it for the backward pass, or runs it there.
    calls
        How many.
    traced_s
        What the profiler saw of them, with its own cost.
    """

    segment: int
    operator: str
    sizes: Sizes
    autograd: bool
    calls: int
    traced_s: float


def read_operator_trace(text: str, ranks: int = 1) -> list[TracedOperator]:
    """All operators of a trace.

    Parameters
    ----------
    text : str
        The file's content.
    ranks : int
        Of the process group; collectives of one rank are no more than what the host does.

    Raises
    ------
    ReproError
        It has no operators, or no shapes.
    """
    events = [
        event
        for event in read_json(text, "traceEvents", []).get("traceEvents", [])
        if isinstance(event, dict) and event.get("ph") == "X" and event.get("cat") == "cpu_op"
    ]
    if not any(event["name"].startswith("aten::") for event in events):
        raise ReproError("has no operators; profile with torch.profiler's activity CPU")
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise ReproError("its operators have no shapes; profile with record_shapes=True")
    calls: defaultdict[tuple[int, str, Sizes, bool], list[float]] = defaultdict(list)
    segment = 0
    for operator, sizes, autograd, seconds in _operators(events, ranks):
        calls[segment, operator, sizes, autograd].append(seconds)
        segment += operator in COLLECTIVES.values()
    return [
        TracedOperator(*key, calls=len(seconds), traced_s=sum(seconds))
        for key, seconds in calls.items()
    ]


def read_operator_file(path: Path, ranks: int = 1) -> list[TracedOperator]:
    """`read_operator_trace` of a file, which may be packed by gzip.

    Raises
    ------
    ReproError
        It cannot be read, or as there.
    """
    try:
        return read_operator_trace(read_text(path), ranks)
    except ReproError as error:
        raise ReproError(f"{path}: {error}") from None


def _operators(
    events: list[dict[str, Any]], ranks: int
) -> Iterator[tuple[str, Sizes, bool, float]]:
    """In the order of time: each outermost operator, and what in it a microbenchmark stands for."""
    # Ends of the operators of each thread that hold, or stand for, those within them, and of what
    # autograd has a part in.
    outer_until: defaultdict[Any, float] = defaultdict(float)
    stands_until: defaultdict[Any, float] = defaultdict(float)
    autograd_until: defaultdict[Any, float] = defaultdict(float)
    ordered = sorted(events, key=lambda event: (event["ts"], -event["dur"]))
    recorded = _recorded(ordered)
    for number, event in enumerate(ordered):
        thread, start, seconds = event["tid"], event["ts"], event["dur"] * 1e-6
        end = start + event["dur"]
        room, _, short = event["name"].partition("::")
        args: Mapping[str, Any] = event.get("args", {})
        if number in recorded or event["name"].startswith(_ENGINE):
            autograd_until[thread] = max(autograd_until[thread], end)
        autograd = start < autograd_until[thread]
        if room == "c10d" and short in COLLECTIVES and ranks > 1:
            yield COLLECTIVES[short], (collective_bytes(args),), autograd, seconds
        if room != "aten":
            continue
        if start >= outer_until[thread]:
            outer_until[thread] = end
            yield HOST_OF_VIEW if short in _VIEWS else HOST, (), autograd, 0.0
        if start < stands_until[thread]:
            continue
        if found := benchmark_of(event["name"], args):
            stands_until[thread] = end
            yield *found, autograd, seconds
        elif number + 1 == len(ordered) or ordered[number + 1]["ts"] >= end:
            yield short, (), autograd, seconds


def _recorded(ordered: Sequence[Mapping[str, Any]]) -> set[int]:
    """Which of these events the backward pass has steps for, of those that hold each other the
    outer ones."""
    arguments = [event.get("args", {}) for event in ordered]
    # Steps say which thread they were recorded on.
    steps = {args.get(_NUMBER) for args in arguments if args.get("Fwd thread id")} - {None}
    last: dict[Any, int] = {}
    until: defaultdict[Any, float] = defaultdict(float)
    for number, (event, args) in enumerate(zip(ordered, arguments, strict=True)):
        forward = args.get(_NUMBER) in steps and not args.get("Fwd thread id")
        if forward and event["ts"] >= until[event["tid"]]:
            until[event["tid"]] = event["ts"] + event["dur"]
            last[args[_NUMBER]] = number
    return set(last.values())
