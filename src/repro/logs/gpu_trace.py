"""Read traces of PyTorch's profiler of a GPU: what was launched, in order, and waited for.

Keys are those of torch/csrc/profiler with the activities CPU and CUDA (`record_shapes=True`);
kernels name the operator that launched them by its external id. The iteration is of one micro
batch on one rank.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from repro.catalog.studies.operator_benchmarks import Sizes, benchmark_of, precisions_of
from repro.errors import ReproError
from repro.logs.truncated_json import read_json

# What runs before the backward pass, in it, and behind it: autograd has a thread of its own.
PARTS = ("forward", "backward", "optimizer")
# Stands for the host's waiting for all that it has launched.
WAIT = "wait"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_BACKWARD = "autograd::engine"
_OPTIMIZER_STEP = "_fused_adamw_/1"


@dataclass
class GpuCall:
    """A call that a GPU works on, or `WAIT`.

    Attributes
    ----------
    part
        One of `PARTS`.
    operator, sizes
        As in `repro.catalog.studies.operator_benchmarks`, without sizes where no microbenchmark stands
        for it.
    precisions
        Of its largest operands.
    launches
        Kernels, copies and fillings.
    busy_s
        What the GPU worked on them in the trace.
    """

    part: str
    operator: str
    sizes: Sizes = ()
    precisions: tuple[str, ...] = ()
    launches: int = 0
    busy_s: float = 0.0


@dataclass
class _Thread:
    """The call that stands for what lies within it, and when it ends."""

    until: float = 0.0
    call: GpuCall = field(default_factory=lambda: GpuCall(PARTS[0], ""))


def read_gpu_trace(text: str, precision: str, parameters: int) -> list[GpuCall]:
    """All calls of an iteration that launch something, and waits, in the order of the host.

    Parameters
    ----------
    text : str
        The file's content.
    precision : str
        Of lists of tensors, of which the profiler does not say it.
    parameters : int
        That the optimizer steps in fp32: the profiler leaves out the shapes of long lists.

    Raises
    ------
    ReproError
        It has no operators with shapes, or nothing ran on a GPU.
    """
    events = [
        event
        for event in read_json(text, "traceEvents", []).get("traceEvents", [])
        if isinstance(event, dict) and event.get("ph") == "X"
    ]
    if not any("Input Dims" in event.get("args", {}) for event in events):
        raise ReproError("its operators have no shapes; profile with record_shapes=True")
    launched: defaultdict[Any, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") in _ON_GPU:
            launched[event["args"].get("External id")].append(event["dur"] * 1e-6)
    if not launched:
        raise ReproError("nothing in it ran on a GPU; profile with torch.profiler's activity CUDA")
    calls = [one for one in _calls(events, launched) if one.launches or one.operator == WAIT]
    steps = [one for one in calls if one.operator == _OPTIMIZER_STEP and one.sizes == (1,)]
    for call in steps:
        # Each launch steps as many.
        share = call.launches / sum(one.launches for one in steps)
        call.sizes, call.precisions = (parameters * share,), ("fp32",)
    for call in calls:
        if call.sizes and not call.precisions:
            call.precisions = (precision,)
    return calls


def _calls(events: list[dict[str, Any]], launched: dict[Any, list[float]]) -> list[GpuCall]:
    """Calls in order, with what lies within them, whether they launch something or not."""
    backward = [one for one in events if str(one["name"]).startswith(_BACKWARD)]
    begins = min((one["ts"] for one in backward), default=float("inf"))
    ends = max((one["ts"] + one["dur"] for one in backward), default=float("inf"))
    threads: defaultdict[Any, _Thread] = defaultdict(_Thread)
    found = []
    for event in sorted(events, key=lambda one: (one["ts"], -one["dur"])):
        start, name, args = event["ts"], str(event["name"]), event.get("args", {})
        part = PARTS[0] if start < begins else PARTS[1] if start < ends else PARTS[2]
        if event.get("cat") == "cuda_runtime" and "Synchronize" in name:
            found.append(GpuCall(part, WAIT))
        if event.get("cat") != "cpu_op":
            continue
        thread = threads[event["tid"]]
        own = launched.get(args.get("External id"), [])
        if start >= thread.until:
            benchmark = benchmark_of(name, args) if name.startswith("aten::") else None
            if benchmark:
                thread.until = start + event["dur"]
                thread.call = GpuCall(part, *benchmark, precisions_of(benchmark[0], args))
                found.append(thread.call)
            elif own:
                thread.call = GpuCall(part, name.rpartition("::")[2])
                found.append(thread.call)
        if own:
            thread.call.launches += len(own)
            thread.call.busy_s += sum(own)
    return found
