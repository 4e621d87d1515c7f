"""Training logs of DeepSpeed: throughput timer, pipeline engine, wall-clock breakdown, profiler."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, Timer, ToolLog, labelled, positive, whole

TOOL = "DeepSpeed training"
_THROUGHPUT = re.compile(
    r"global_step=(\d+).*?RunningAvgSamplesPerSec=([\d.eE+-]+)(?:.*?CurrSamplesPerSec=([\d.eE+-]+))?"
)
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)\s*GB")
_PIPELINE = re.compile(r"steps: (\d+) loss: \S+ iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)")
_BREAKDOWN = re.compile(
    r"time \(ms\)\s*\|\s*((?:fwd|bwd|step|forward|backward|batch|train|pipe)\w*.*)"
)
_PROFILED = re.compile(r"iter latency:\s*([\d.]+)\s*(s|ms|us)\b")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_STATED = {
    "gpus": re.compile(r"\bworld size:\s+(\d+)"),
    "dp": re.compile(r"\bdata parallel size:\s+(\d+)"),
    "tp": re.compile(r"\bmodel parallel size:\s+(\d+)"),
    "micro_batch": re.compile(r"\bbatch size per GPU:\s+(\d+)"),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, timers of the breakdown, and what the flops profiler states."""
    steps, timers = [], []
    stated: dict[str, float] = {}
    for line in lines:
        text = line.text
        if found := _PIPELINE.search(text):
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    positive(found[2]),
                    samples_per_s=positive(found[3]),
                )
            )
        elif found := _THROUGHPUT.search(text):
            memory = _MEMORY.search(text)
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    samples_per_s=positive(found[3] or found[2]),
                    memory_bytes=2**30 * float(memory[1])
                    if memory and positive(memory[1])
                    else None,
                    running_mean=found[3] is None,
                )
            )
        elif found := _BREAKDOWN.search(text):
            for name, value in labelled(found[1]).items():
                if (time_ms := positive(value)) is not None:
                    timers.append(Timer(line.number, name, 1e-3 * time_ms))
        elif (found := _PROFILED.search(text)) and (time_s := positive(found[1])):
            steps.append(Step(line.number, time_s=time_s * _UNITS[found[2]]))
        for name, pattern in _STATED.items():
            if found := pattern.search(text):
                stated[name] = float(found[1])
    return ToolLog(TOOL, tuple(steps), tuple(timers), stated)
