"""Reader of PyTorch profiler traces: the operators of an iteration with their shapes, in order.

Keys are those of torch/csrc/profiler with the activity CPU, for GPUs also CUDA
(`record_shapes=True`). A kernel refers to the operator that launched it by its external id. The
iteration has one micro batch on one rank.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.catalog.studies.operator_benchmarks import Sizes, benchmark_of, precisions_of
from repro.errors import ReproError, of_file
from repro.logs.reading import read_text
from repro.logs.truncated_json import read_json

# Calls before, during and after the backward pass, which autograd runs in a separate thread.
PARTS = ("forward", "backward", "optimizer")
# Operator name of a host's wait for all launched work.
WAIT = "wait"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BACKWARD = "autograd::engine"
_OPTIMIZER_STEP = "_fused_adamw_/1"

_Event = dict[str, Any]


@dataclass
class TracedCall:
    """A call that computes, or `WAIT`.

    Attributes
    ----------
    part
        One of `PARTS`.
    operator, sizes
        As in `repro.catalog.studies.operator_benchmarks`; no sizes without a microbenchmark.
    precisions
        Precisions of its largest operands.
    launches
        Number of kernels, copies and memsets on a GPU; 1 on a CPU.
    busy_s
        Time on the device in the trace, in seconds; on a CPU with the profiler's overhead.
    """

    part: str
    operator: str
    sizes: Sizes = ()
    precisions: tuple[str, ...] = ()
    launches: int = 0
    busy_s: float = 0.0


@dataclass
class _Thread:
    """Outermost call of a thread, which includes nested operators until it ends."""

    until: float = 0.0
    call: TracedCall = field(default_factory=lambda: TracedCall(PARTS[0], ""))


def read_gpu_trace(text: str, precision: str, parameters: int) -> list[TracedCall]:
    """Read all calls of an iteration that launch work, and waits, in the order of the host.

    Parameters
    ----------
    text : str
        Content of the file.
    precision : str
        Precision of lists of tensors, which the profiler does not record.
    parameters : int
        Number of fp32 parameters of the optimizer step: the profiler omits shapes of long lists.

    Raises
    ------
    ReproError
        The trace has no operators with shapes, or nothing ran on a GPU.
    """
    events = _events(text)
    launched: defaultdict[Any, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_GPU:
            launched[event["args"].get("External id")].append(event["dur"] * 1e-6)
    if not launched:
        raise ReproError("nothing in it ran on a GPU; fix: profile with ProfilerActivity.CUDA")
    calls = [
        call for call in _gpu_calls(events, launched) if call.launches or call.operator == WAIT
    ]
    return _with_lists(calls, precision, parameters)


def read_cpu_trace(text: str, precision: str = "", parameters: int = 0) -> list[TracedCall]:
    """Read all calls of an iteration on a CPU.

    These are the outermost operators with a microbenchmark, and innermost operators without one.
    Parameters are as in `read_gpu_trace`; without them, lists of tensors have no precision.

    Raises
    ------
    ReproError
        The trace has no operators with shapes, or something ran on a GPU.
    """
    events = _events(text)
    if any(event.get("cat") in _ON_GPU for event in events):
        raise ReproError("it is a GPU's; fix: profile an iteration on a CPU")
    return _with_lists(list(_cpu_calls(events)), precision, parameters)


def read_cpu_file(path: Path) -> list[TracedCall]:
    """Read all calls of a trace file, which may be compressed by gzip, with `read_cpu_trace`.

    Raises
    ------
    ReproError
        The file cannot be read, its trace has no operators with shapes, or is a GPU's.
    """
    with of_file(path, "export the trace again"):
        return read_cpu_trace(read_text(path))


def _events(text: str) -> list[_Event]:
    """Return events that have a duration, those that enclose others first."""
    events = []
    for number, event in enumerate(read_json(text, "traceEvents", []).get("traceEvents", [])):
        if isinstance(event, dict) and event.get("ph") == "X":
            if not _is_complete(event):
                raise ReproError(f"traceEvents[{number}]: name, tid, ts, dur or args is not usual")
            events.append(event)
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise ReproError("its operators have no shapes; fix: profile with record_shapes=True")
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def _is_complete(event: _Event) -> bool:
    times, args = (event.get("ts"), event.get("dur")), event.get("args", {})
    return (
        all(isinstance(one, int | float) and math.isfinite(one) for one in times)
        and isinstance(args, dict)
        and isinstance(event.get("tid"), int | str)
        and isinstance(args.get("External id", 0), int | str)
        and "name" in event
    )


def _parts(events: list[_Event]) -> Iterator[tuple[_Event, str]]:
    """Yield each event with the part of the iteration in which it begins."""
    backward = [event for event in events if str(event["name"]).startswith(_BACKWARD)]
    begin = min((event["ts"] for event in backward), default=float("inf"))
    end = max((event["ts"] + event["dur"] for event in backward), default=float("inf"))
    for event in events:
        yield event, PARTS[(event["ts"] >= begin) + (event["ts"] >= end)]


def _benchmarked(event: _Event, part: str) -> TracedCall | None:
    """Return the call of an operator that has a microbenchmark, of others None."""
    name, args = str(event["name"]), event.get("args", {})
    try:
        found = benchmark_of(name, args) if name.startswith("aten::") else None
        return found and TracedCall(part, *found, precisions_of(found[0], args))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        place = f"{name[:60]} at {event['ts']} us"
        raise ReproError(f"{place}: its shapes are not those of the operator") from None


def _gpu_calls(events: list[_Event], launched: dict[Any, list[float]]) -> list[TracedCall]:
    """Return all calls in order, with the launches of nested operators."""
    threads: defaultdict[Any, _Thread] = defaultdict(_Thread)
    calls = []
    for event, part in _parts(events):
        start, name = event["ts"], str(event["name"])
        if event.get("cat") == "cuda_runtime" and "Synchronize" in name:
            calls.append(TracedCall(part, WAIT))
        if event.get("cat") != "cpu_op":
            continue
        thread = threads[event["tid"]]
        gpu_s = launched.get(event.get("args", {}).get("External id"), [])
        if start >= thread.until:
            if benchmarked := _benchmarked(event, part):
                thread.until = start + event["dur"]
                thread.call = benchmarked
                calls.append(thread.call)
            elif gpu_s:
                thread.call = TracedCall(part, name.rpartition("::")[2])
                calls.append(thread.call)
        if gpu_s:
            thread.call.launches += len(gpu_s)
            thread.call.busy_s += sum(gpu_s)
    return calls


def _cpu_calls(events: list[_Event]) -> Iterator[TracedCall]:
    """Yield all calls in order; nested ones belong to the outermost with a microbenchmark."""
    until: defaultdict[Any, float] = defaultdict(float)
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    if not operators:
        raise ReproError("it has no operators of a CPU; fix: profile with ProfilerActivity.CPU")
    begins = [event["ts"] for event in operators[1:]] + [float("inf")]
    for (event, part), next_begins in zip(_parts(operators), begins, strict=True):
        name, thread, end = str(event["name"]), event["tid"], event["ts"] + event["dur"]
        if event["ts"] < until[thread] or not name.startswith("aten::"):
            continue
        call = _benchmarked(event, part)
        if call:
            until[thread] = end
        elif next_begins >= end:
            call = TracedCall(part, name.rpartition("::")[2])
        if call:
            call.launches, call.busy_s = 1, event["dur"] * 1e-6
            yield call


def _with_lists(calls: list[TracedCall], precision: str, parameters: int) -> list[TracedCall]:
    """Complete the calls on lists of tensors, of which the profiler records too little."""
    steps = [call for call in calls if call.operator == _OPTIMIZER_STEP and call.sizes == (1,)]
    for call in steps if parameters else []:
        # Each launch updates equally many parameters.
        fraction = call.launches / sum(step.launches for step in steps)
        call.sizes, call.precisions = (parameters * fraction,), ("fp32",)
    for call in calls:
        if call.sizes and not call.precisions and precision:
            call.precisions = (precision,)
    return calls
