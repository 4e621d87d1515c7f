"""Training logs of DeepSpeed: throughput timer, pipeline engine, wall-clock breakdown, profiler."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import (
    Line,
    Step,
    Timer,
    ToolLog,
    labelled,
    positive,
    stated_in,
    whole,
)

TOOL = "DeepSpeed training"
# Since 0.5 `global_step=10, RunningAvgSamplesPerSec=`; before `0/10, SamplesPerSec=`.
_THROUGHPUT = re.compile(
    r"(?:global_step=|\b\d{1,9}/)(\d+), (?:Running(?:Avg)?)?SamplesPerSec=([\d.eE+-]+)"
    r"(?:, CurrSamplesPerSec=([\d.eE+-]+))?"
)
_MEMORY = re.compile(r"MaxMemAllocated=([\d.]+)\s?GB")
_PIPELINE = re.compile(
    r"steps: (\d+) loss: \S{1,40} iter time \(s\): ([\d.]+) samples/sec: ([\d.]+)"
)
_BREAKDOWN = re.compile(
    r"time \(ms\)\s?\|\s?((?:fwd|bwd|step|forward|backward|batch|train|pipe)\w*.*)"
)
_PROFILED = re.compile(r"iter latency:\s{1,80}([\d.]+)\s?(s|ms|us)\b")
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_STATED = {
    "gpus": re.compile(r"\bworld size:\s{1,80}(\d+)"),
    "dp": re.compile(r"\bdata parallel size:\s{1,80}(\d+)"),
    "tp": re.compile(r"\bmodel parallel size:\s{1,80}(\d+)"),
    "micro_batch": re.compile(r"\bbatch size per GPU:\s{1,80}(\d+)"),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, timers of the breakdown, and what the flops profiler states."""
    steps, timers = [], []
    stated: dict[str, float] = {}
    for line in lines:
        text = line.text
        if "samples/sec" in text and (found := _PIPELINE.search(text)):
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    positive(found[2]),
                    samples_per_s=positive(found[3]),
                )
            )
        elif "SamplesPerSec" in text and (found := _THROUGHPUT.search(text)):
            memory = _MEMORY.search(text)
            peak = positive(memory[1]) if memory else None
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    samples_per_s=positive(found[3] or found[2]),
                    memory_bytes=2**30 * peak if peak is not None else None,
                    running_mean=found[3] is None,
                )
            )
        elif "time (ms)" in text and (found := _BREAKDOWN.search(text)):
            for name, value in labelled(found[1]).items():
                if (time_ms := positive(value)) is not None:
                    timers.append(Timer(line.number, name, 1e-3 * time_ms))
        elif (
            "iter latency" in text
            and (found := _PROFILED.search(text))
            and (time_s := positive(found[1]))
        ):
            steps.append(Step(line.number, time_s=time_s * _UNITS[found[2]]))
        if "size" in text:
            stated |= stated_in(text, _STATED)
    return ToolLog(TOOL, tuple(steps), tuple(timers), stated)
