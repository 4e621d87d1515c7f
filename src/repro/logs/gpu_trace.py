"""Reader of PyTorch profiler traces of a GPU: operators that launch kernels, and host waits.

Keys are those of torch/csrc/profiler with the activities CPU and CUDA (`record_shapes=True`). A
kernel refers to the operator that launched it by its external id. The iteration has one micro batch
on one rank.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from repro.catalog.studies.operator_benchmarks import Sizes, benchmark_of, precisions_of
from repro.errors import ReproError
from repro.logs.truncated_json import read_json

# Calls before, during and after the backward pass, which autograd runs in a separate thread.
PARTS = ("forward", "backward", "optimizer")
# Operator name of a host's wait for all launched work.
WAIT = "wait"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BACKWARD = "autograd::engine"
_OPTIMIZER_STEP = "_fused_adamw_/1"


@dataclass
class GpuCall:
    """A call that launches work on a GPU, or `WAIT`.

    Attributes
    ----------
    part
        One of `PARTS`.
    operator, sizes
        As in `repro.catalog.studies.operator_benchmarks`; no sizes without a microbenchmark.
    precisions
        Precisions of its largest operands.
    launches
        Number of kernels, copies and memsets.
    busy_s
        GPU time of the launches in the trace, in seconds.
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
    call: GpuCall = field(default_factory=lambda: GpuCall(PARTS[0], ""))


def read_gpu_trace(text: str, precision: str, parameters: int) -> list[GpuCall]:
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
    events = [
        event
        for event in read_json(text, "traceEvents", []).get("traceEvents", [])
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise ReproError("its operators have no shapes; fix: profile with record_shapes=True")
    launched: defaultdict[Any, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_GPU:
            launched[event["args"].get("External id")].append(event["dur"] * 1e-6)
    if not launched:
        raise ReproError("nothing in it ran on a GPU; fix: profile with ProfilerActivity.CUDA")
    calls = [call for call in _calls(events, launched) if call.launches or call.operator == WAIT]
    steps = [call for call in calls if call.operator == _OPTIMIZER_STEP and call.sizes == (1,)]
    for call in steps:
        # Each launch updates equally many parameters.
        fraction = call.launches / sum(step.launches for step in steps)
        call.sizes, call.precisions = (parameters * fraction,), ("fp32",)
    for call in calls:
        if call.sizes and not call.precisions:
            call.precisions = (precision,)
    return calls


def _calls(events: list[dict[str, Any]], launched: dict[Any, list[float]]) -> list[GpuCall]:
    """Return all calls in order, with the launches of nested operators."""
    backward = [event for event in events if str(event["name"]).startswith(_BACKWARD)]
    backward_start = min((event["ts"] for event in backward), default=float("inf"))
    backward_end = max((event["ts"] + event["dur"] for event in backward), default=float("inf"))
    threads: defaultdict[Any, _Thread] = defaultdict(_Thread)
    calls = []
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start, name, args = event["ts"], str(event["name"]), event.get("args", {})
        part = PARTS[(start >= backward_start) + (start >= backward_end)]
        if event.get("cat") == "cuda_runtime" and "Synchronize" in name:
            calls.append(GpuCall(part, WAIT))
        if event.get("cat") != "cpu_op":
            continue
        thread = threads[event["tid"]]
        gpu_s = launched.get(args.get("External id"), [])
        if start >= thread.until:
            benchmark = benchmark_of(name, args) if name.startswith("aten::") else None
            if benchmark:
                thread.until = start + event["dur"]
                thread.call = GpuCall(part, *benchmark, precisions_of(benchmark[0], args))
                calls.append(thread.call)
            elif gpu_s:
                thread.call = GpuCall(part, name.rpartition("::")[2])
                calls.append(thread.call)
        if gpu_s:
            thread.call.launches += len(gpu_s)
            thread.call.busy_s += sum(gpu_s)
    return calls
