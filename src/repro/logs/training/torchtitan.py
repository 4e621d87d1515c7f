"""Training logs of torchtitan; every rank may print, and throughput is that of one GPU."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "torchtitan"
# Validation prints the same with another word in front.
_STEP = re.compile(r"(?<!validate )\bstep:\s{0,8}(\d+)\s{1,8}(?:loss|[\w/]+loss):")
_THROUGHPUT = re.compile(r"\b(?:tps|wps):\s*([\d,.]+)")
_FLOPS = re.compile(r"\btflops:\s*([\d,.]+)")
_MFU = re.compile(r"\bmfu:\s*(-?[\d.]+)\s*%")
_MEMORY = re.compile(r"\bmemory:\s*([\d.]+)\s*GiB")
_TIME = re.compile(r"\btime(?:_metrics/end_to_end)?\(s\):\s*([\d.]+)")
_MESH = re.compile(
    r"[Bb]uilding (?:\d-D )?device mesh with (?:dims=)?\[([^\]]*)\],?\s?[\[(]?([^\])]*)"
)
_DEGREES = re.compile(r"Building device mesh with parallelism: (.*)")
_SIZES = re.compile(
    r"local batch size (\d+), global batch size (\d+)(?:.{0,80}?sequence length (\d+))?"
)
_AXES = {"dp": "dp", "dp_shard": "dp", "dp_replicate": "dp", "tp": "tp", "pp": "pp", "cp": "cp"}
_START = re.compile(r"\bTraining starts at step\b")
# Experts are divided among the ranks of the other axes.
_INNER = ("ep", "etp")


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, the device mesh and batch sizes."""
    steps = []
    stated: dict[str, float] = {}
    starts: list[int] = []
    for line in lines:
        text = line.text
        if "step:" in text and (found := _STEP.search(text)):
            tps, flops, mfu = _THROUGHPUT.search(text), _FLOPS.search(text), _MFU.search(text)
            memory, time = _MEMORY.search(text), _TIME.search(text)
            if tps or time:
                steps.append(
                    Step(
                        line.number,
                        whole(found[1]),
                        positive(time[1]) if time else None,
                        tokens_per_s_per_gpu=positive(tps[1]) if tps else None,
                        tflops_per_gpu=positive(flops[1]) if flops else None,
                        mfu=_percent(mfu),
                        memory_bytes=2**30 * (positive(memory[1]) or 0.0) if memory else None,
                    )
                )
        elif "Training starts" in text and _START.search(text):
            starts.append(line.number)
        elif "device mesh" in text and (found := _MESH.search(text)):
            stated |= _mesh(re.findall(r"\w+", found[1]), re.findall(r"\d+", found[2]))
        elif "device mesh" in text and (found := _DEGREES.search(text)):
            degrees = re.findall(r"(\w+)=(\d+)", found[1])
            stated |= _mesh([name for name, _ in degrees], [size for _, size in degrees])
        elif "local batch size" in text and (found := _SIZES.search(text)):
            names = ("micro_batch", "global_batch", "seq")
            sizes = map(positive, found.groups())
            stated |= {name: size for name, size in zip(names, sizes, strict=True) if size}
    return ToolLog(TOOL, tuple(steps), stated=stated, starts=tuple(starts))


def _percent(found: re.Match[str] | None) -> float | None:
    value = found and found[1]
    try:
        return float(value) / 100 if value else None
    except ValueError:
        return None


def _mesh(axes: Sequence[str], sizes: Sequence[str]) -> dict[str, float]:
    """Return the parallel sizes of a device mesh; sharded and replicated ranks are replicas."""
    numbers = [positive(size) for size in sizes]
    if len(axes) != len(numbers):
        return {}
    found = {"gpus": 1.0}
    for axis, size in zip(axes, numbers, strict=True):
        if size is None:
            return {}
        if axis in _INNER:
            found[axis] = size
            continue
        found["gpus"] *= size
        if axis in _AXES:
            found[_AXES[axis]] = found.get(_AXES[axis], 1.0) * size
    return found
