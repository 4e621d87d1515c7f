"""Training logs of torchtitan; every rank may print, and throughput is that of one GPU."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "torchtitan"
_STEP = re.compile(r"\bstep:\s*(\d+)\s+loss:")
_THROUGHPUT = re.compile(r"\b(?:tps|wps):\s*([\d,.]+)")
_FLOPS = re.compile(r"\btflops:\s*([\d,.]+)")
_MFU = re.compile(r"\bmfu:\s*(-?[\d.]+)\s*%")
_MEMORY = re.compile(r"\bmemory:\s*([\d.]+)\s*GiB")
_TIME = re.compile(r"\btime(?:_metrics/end_to_end)?\(s\):\s*([\d.]+)")
_MESH = re.compile(r"[Bb]uilding (?:\d-D )?device mesh with (?:dims=)?\[(.*?)\],?\s*\(?\[?(.*)")
_SIZES = re.compile(r"local batch size (\d+), global batch size (\d+)(?:.*?sequence length (\d+))?")
_AXES = {"dp": "dp", "dp_shard": "dp", "dp_replicate": "dp", "tp": "tp", "pp": "pp", "cp": "cp"}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, the device mesh and batch sizes."""
    steps = []
    stated: dict[str, float] = {}
    for line in lines:
        text = line.text
        if found := _STEP.search(text):
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
        elif found := _MESH.search(text):
            stated |= _mesh(found[1], found[2])
        elif found := _SIZES.search(text):
            stated |= {"micro_batch": float(found[1]), "global_batch": float(found[2])}
            if found[3]:
                stated["seq"] = float(found[3])
    return ToolLog(TOOL, tuple(steps), stated=stated)


def _percent(found: re.Match[str] | None) -> float | None:
    value = found and found[1]
    try:
        return float(value) / 100 if value else None
    except ValueError:
        return None


def _mesh(names: str, sizes: str) -> dict[str, float]:
    """Return the parallel sizes of a device mesh; sharded and replicated ranks are replicas."""
    axes, numbers = re.findall(r"\w+", names), re.findall(r"\d+", sizes)
    found: dict[str, float] = {}
    for axis, size in zip(axes, numbers, strict=False):
        name = _AXES.get(axis)
        if name:
            found[name] = found.get(name, 1.0) * float(size)
    if found and len(axes) == len(numbers):
        found["gpus"] = 1.0
        for size in numbers:
            found["gpus"] *= float(size)
    return found
