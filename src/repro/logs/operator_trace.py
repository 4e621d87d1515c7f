"""Reader of PyTorch profiler traces: operators with their shapes, between collectives.

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

# Operators that represent the host's time between operators (Python and autograd); the second one
# between operators that compute nothing.
HOST, HOST_OF_VIEW = "host", "host of a view"
HOSTS = (HOST, HOST_OF_VIEW)
# Prefix of events that enclose steps of the backward pass; and key of the number that a step shares
# with its forward operator, and with unrecorded operators before that one.
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
        Index of the segment. Each segment of an iteration ends with a collective of several ranks.
    operator, sizes
        As in `repro.catalog.studies.operator_benchmarks`; no sizes without a microbenchmark. Or one
        of `HOSTS`, with a call for each outermost operator.
    autograd
        Whether autograd records the operator for the backward pass, or runs it there.
    calls
        Number of calls.
    traced_s
        Total time in the trace, in seconds, including the profiler's overhead.
    """

    segment: int
    operator: str
    sizes: Sizes
    autograd: bool
    calls: int
    traced_s: float


def read_operator_trace(text: str, ranks: int = 1) -> list[TracedOperator]:
    """Read all operators of a trace.

    Parameters
    ----------
    text : str
        Content of the file.
    ranks : int
        Size of the process group; collectives of one rank are only host work.

    Raises
    ------
    ReproError
        The trace has no operators, or no shapes.
    """
    events = [
        event
        for event in read_json(text, "traceEvents", []).get("traceEvents", [])
        if isinstance(event, dict) and event.get("ph") == "X" and event.get("cat") == "cpu_op"
    ]
    if not any(event["name"].startswith("aten::") for event in events):
        raise ReproError("has no operators; fix: profile with ProfilerActivity.CPU")
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise ReproError("its operators have no shapes; fix: profile with record_shapes=True")
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
    """Read all operators of a trace file, which may be compressed by gzip.

    Raises
    ------
    ReproError
        The file cannot be read, or its trace has no operators or no shapes.
    """
    try:
        return read_operator_trace(read_text(path), ranks)
    except ReproError as error:
        raise ReproError(f"{path}: {error}") from None


def _operators(
    events: list[dict[str, Any]], ranks: int
) -> Iterator[tuple[str, Sizes, bool, float]]:
    """Yield (operator, sizes, autograd, seconds) in order of time.

    These are the host time of each outermost operator, collectives, operators with a
    microbenchmark, and innermost operators without one.
    """
    # Per thread: end of the current outermost operator, of the current operator with a
    # microbenchmark, and of the current operator with a part in autograd.
    outermost_until: defaultdict[Any, float] = defaultdict(float)
    benchmark_until: defaultdict[Any, float] = defaultdict(float)
    autograd_until: defaultdict[Any, float] = defaultdict(float)
    ordered = sorted(events, key=lambda event: (event["ts"], -event["dur"]))
    recorded = _recorded_for_backward(ordered)
    for number, event in enumerate(ordered):
        thread, start, seconds = event["tid"], event["ts"], event["dur"] * 1e-6
        end = start + event["dur"]
        namespace, _, short = event["name"].partition("::")
        args: Mapping[str, Any] = event.get("args", {})
        if number in recorded or event["name"].startswith(_ENGINE):
            autograd_until[thread] = max(autograd_until[thread], end)
        autograd = start < autograd_until[thread]
        if namespace == "c10d" and short in COLLECTIVES and ranks > 1:
            yield COLLECTIVES[short], (collective_bytes(args),), autograd, seconds
        if namespace != "aten":
            continue
        if start >= outermost_until[thread]:
            outermost_until[thread] = end
            yield HOST_OF_VIEW if short in _VIEWS else HOST, (), autograd, 0.0
        if start < benchmark_until[thread]:
            continue
        if benchmark := benchmark_of(event["name"], args):
            benchmark_until[thread] = end
            yield *benchmark, autograd, seconds
        elif number + 1 == len(ordered) or ordered[number + 1]["ts"] >= end:
            yield short, (), autograd, seconds


def _recorded_for_backward(ordered: Sequence[Mapping[str, Any]]) -> set[int]:
    """Return the indices of events that have a step in the backward pass; the outer if nested."""
    arguments = [event.get("args", {}) for event in ordered]
    # Only steps of the backward pass have the id of their forward thread.
    steps = {args.get(_NUMBER) for args in arguments if args.get("Fwd thread id")} - {None}
    last: dict[Any, int] = {}
    until: defaultdict[Any, float] = defaultdict(float)
    for number, (event, args) in enumerate(zip(ordered, arguments, strict=True)):
        forward = args.get(_NUMBER) in steps and not args.get("Fwd thread id")
        if forward and event["ts"] >= until[event["tid"]]:
            until[event["tid"]] = event["ts"] + event["dur"]
            last[args[_NUMBER]] = number
    return set(last.values())
