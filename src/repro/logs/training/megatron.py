"""Training logs of Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge since 2020."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from repro.logs.training.steps import Line, Step, Timer, ToolLog, labelled, positive, whole

TOOL = "Megatron"
_STEP = re.compile(r"iteration\s+(\d+)\s*/\s*(\d+)\s*\|(.*)")
_TIME = re.compile(r"elapsed time per iteration \((ms|s)\)")
_BRIDGE = re.compile(
    r"Step Time\s*:\s*([\d.]+)\s*s\s+GPU utilization\s*:\s*([\d.]+)\s*(?:MODEL_)?TFLOP/s/GPU"
)
_WORLD = re.compile(r"using world size:\s*(\d+)")
_GROUPS = {
    "dp": re.compile(r"data-parallel[- ]size:\s*(\d+)"),
    "tp": re.compile(r"tensor-model-parallel[- ]size:\s*(\d+)"),
    "pp": re.compile(r"pipeline-model-parallel[- ]size:\s*(\d+)"),
    "cp": re.compile(r"context-parallel[- ]size:\s*(\d+)"),
}
_MEMORY = re.compile(r"max allocated:\s*([\d.]+)")
_ARGUMENT = re.compile(r"(?:^|[\s\]>|:])([a-z]\w*) \.{3,} ?(.*)$")
_ONE_LINE = re.compile(r"time \(ms\)\s*\|(.*)")
_HEADER = re.compile(r"times? across ranks \(ms\)")
_OF_RANKS = re.compile(r"(?:^|\s)([a-z][\w-]*) \.*: ?\(?([\d.]+)(?:, ?([\d.]+)\))?$")
_FLOPS = ("throughput per gpu (tflop/s/gpu)", "tflops", "tflops per gpu", "tflop/s/gpu")


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, timers, the arguments and sizes of groups."""
    steps: list[Step] = []
    bridge: list[Step] = []
    timers: list[Timer] = []
    stated: dict[str, float] = {}
    arguments: list[str] = []
    table = False
    memory = 0.0
    for line in lines:
        text = line.text
        if found := _STEP.search(text):
            if step := _step(line, found):
                steps.append(step)
            table = False
        elif found := _BRIDGE.search(text):
            time_s, flops = positive(found[1]), positive(found[2])
            bridge.append(Step(line.number, time_s=time_s, tflops_per_gpu=flops))
        elif found := _ONE_LINE.search(text):
            timers += _timers(line, found[1])
        elif _HEADER.search(text):
            table = True
        elif found := _ARGUMENT.search(text):
            arguments.append(f"  {found[1]} ... {found[2].strip()}")
            table = False
        elif table and (found := _OF_RANKS.search(text.rstrip())):
            longest = positive(found[3] or found[2])
            if longest is not None:
                timers.append(Timer(line.number, found[1].rstrip("."), 1e-3 * longest))
        for value in _MEMORY.findall(text):
            memory = max(memory, 2**20 * (positive(value) or 0.0))
        if found := _WORLD.search(text):
            stated = {"gpus": float(found[1])}
            for name, pattern in _GROUPS.items():
                if size := pattern.search(text):
                    stated[name] = float(size[1])
    if memory:
        stated["memory_bytes"] = memory
    if len(steps) == len(bridge):
        # Megatron-Bridge prints both kinds of lines; one has the number, the other the FLOPs.
        steps = [
            replace(step, tflops_per_gpu=step.tflops_per_gpu or other.tflops_per_gpu)
            for step, other in zip(steps, bridge, strict=True)
        ]
    return ToolLog(TOOL, tuple(steps or bridge), tuple(timers), stated, "\n".join(arguments))


def _step(line: Line, found: re.Match[str]) -> Step | None:
    fields = labelled(found[3])
    time_s = None
    for name, value in fields.items():
        if unit := _TIME.search(name):
            time_s = positive(value)
            if time_s is not None:
                time_s *= 1e-3 if unit[1] == "ms" else 1.0
    flops = next((positive(fields[name]) for name in _FLOPS if name in fields), None)
    samples = positive(fields.get("samples per second"))
    if time_s is None and flops is None and samples is None:
        return None
    return Step(
        line.number,
        whole(found[1]),
        time_s,
        tokens_per_s_per_gpu=positive(fields.get("tokens per second per gpu"))
        or positive(fields.get("tokens/sec/gpu")),
        samples_per_s=samples,
        tflops_per_gpu=flops,
        global_batch=positive(fields.get("global batch size")),
    )


def _timers(line: Line, text: str) -> Iterator[Timer]:
    for name, value in labelled(text).items():
        time_ms = positive(value.split()[0] if value else None)
        if time_ms is not None:
            yield Timer(line.number, name, 1e-3 * time_ms)
