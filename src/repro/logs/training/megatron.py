"""Training logs of Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge since 2020."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

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

TOOL = "Megatron"
# Some forks of Megatron-DeepSpeed print `name_of_value=1.0` instead of `name of value: 1.0`.
_STEP = re.compile(r"\biteration[\s=]\s{0,20}(\d{1,15})\s{0,20}/\s{0,20}\d{1,15}\s?\|")
_TIME = re.compile(r"elapsed time per iteration \(?(ms|s)\b")
_BRIDGE = re.compile(
    r"Step Time\s?:\s?([\d.]+)\s?s\s{1,4}GPU utilization\s?:\s?([\d.]+)\s?(?:MODEL_)?TFLOP/s/GPU"
)
_GROUPS = {
    "gpus": re.compile(r"using world size:\s?(\d+)"),
    "dp": re.compile(r"data-parallel[- ]size:\s?(\d+)"),
    "tp": re.compile(r"tensor-model-parallel[- ]size:\s?(\d+)"),
    "pp": re.compile(r"pipeline-model-parallel[- ]size:\s?(\d+)"),
    "cp": re.compile(r"context-parallel[- ]size:\s?(\d+)"),
}
_MEMORY = re.compile(r"max allocated:\s?([\d.]+)")
_VOCABULARY = {"vocabulary": re.compile(r"padded vocab \(size: (\d+)\)")}
_ARGUMENT = re.compile(r"(?:^|[\s\]>|:])([a-z]\w*) \.{3,} (\S.*)$")
# Arguments without these describe no model.
_OF_MODEL = {"num_layers", "hidden_size"}
_SIZES = {
    "world_size": "gpus",
    "seq_length": "seq",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
_ONE_LINE = re.compile(r"time \(ms\)\s?\|(.*)")
# Names of timers after `--timing-log-option`: `max` and `minmax` have a value, `all` one per rank.
_HEADER = re.compile(r"times? across ranks \(ms\):")
_OF_RANKS = re.compile(r"(?:^|\s)([a-z][\w/-]{0,80}) \.*: ?\(?([\d.]+)(?:, ?([\d.]+)\))?$")
_NAME_OF_RANKS = re.compile(r"^\s*([a-z][\w/-]{0,80}):$")
_ONE_RANK = re.compile(r"^\s*rank\s{1,8}\d+: ([\d.]+)$")
# Timers of work outside iterations, and of the iteration itself.
_NO_PHASE = re.compile(r"setup|checkpoint|eval|interval-time")
_FLOPS = (
    "throughput per gpu (tflop/s/gpu)",
    *("tflops", "tflops per gpu", "tflop/s/gpu", "[lm]tflops"),
)
_TOKENS = (
    *("tokens per second per gpu", "tokens/sec/gpu", "tokens per gpu (tokens/s/gpu)"),
    *("tokens per gpu per second (tgs)", "tokens per gpu per second tgs"),
)


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, timers, the arguments and sizes of groups."""
    steps: list[Step] = []
    bridge: list[Step] = []
    timers: list[Timer] = []
    stated: dict[str, float] = {}
    arguments: dict[str, str] = {}
    starts: list[int] = []
    table, name = False, ""
    memory = 0.0
    for line in lines:
        text = line.text.rstrip()
        if "iteration" in text and _STEP.search(text):
            steps += _steps(line)
            table = False
        elif "Step Time" in text and (found := _BRIDGE.search(text)):
            time_s, flops = positive(found[1]), positive(found[2])
            bridge.append(Step(line.number, time_s=time_s, tflops_per_gpu=flops))
        elif "time (ms)" in text and (found := _ONE_LINE.search(text)):
            timers += _timers(line, found[1])
        elif "across ranks" in text and _HEADER.search(text):
            table, name = True, ""
        elif " ..." in text and (found := _ARGUMENT.search(text)):
            arguments[found[1]] = found[2].strip()
            table = False
        elif table and (found := _OF_RANKS.search(text)):
            timers += _timer(line, found[1].rstrip("."), found[3] or found[2])
        elif table and (found := _NAME_OF_RANKS.search(text)):
            name = found[1]
        elif table and name and (found := _ONE_RANK.search(text)):
            timers += _timer(line, name, found[1])
        for value in _MEMORY.findall(text) if "max allocated" in text else ():
            memory = max(memory, 2**20 * (positive(value) or 0.0))
        if "padded vocab" in text:
            stated |= stated_in(text, _VOCABULARY)
        if "using world size:" in text:
            stated = stated_in(text, _GROUPS)
            starts.append(line.number)
    for argument, size in _SIZES.items():
        if (count := positive(arguments.get(argument))) is not None:
            stated.setdefault(size, count)
    if memory:
        stated["memory_bytes"] = memory
    if len(steps) == len(bridge):
        # Megatron-Bridge prints both kinds of lines; one has the number, the other the FLOPs.
        steps = [
            replace(step, tflops_per_gpu=step.tflops_per_gpu or other.tflops_per_gpu)
            for step, other in zip(steps, bridge, strict=True)
        ]
    text = ""
    if arguments.keys() >= _OF_MODEL:
        text = "\n".join(f"  {name} ... {value}" for name, value in arguments.items())
    return ToolLog(TOOL, tuple(steps or bridge), tuple(timers), stated, text, tuple(starts))


def _steps(line: Line) -> Iterator[Step]:
    """Yield the iterations of a line; two ranks may have written into it."""
    starts = list(_STEP.finditer(line.text))
    ends = [*(start.start() for start in starts[1:]), len(line.text)]
    for start, end in zip(starts, ends, strict=True):
        step = _step(line.number, start[1], line.text[start.end() : end])
        if step is not None:
            yield step


def _step(number: int, iteration: str, text: str) -> Step | None:
    # A value is whole if a bar follows it; what follows the last one was cut, or another rank's.
    text = text[: text.rfind("|")]
    if "=" in text:
        text = text.replace("=", ":").replace("_", " ")
    # Primus prints `this iteration/mean of iterations`.
    fields = {name: value.partition("/")[0] for name, value in labelled(text).items()}
    time_s = None
    for name, value in fields.items():
        if unit := _TIME.search(name):
            time_s = positive(value)
            if time_s is not None:
                time_s *= 1e-3 if unit[1] == "ms" else 1.0
    flops = next((positive(fields[name]) for name in _FLOPS if name in fields), None)
    tokens = next((positive(fields[name]) for name in _TOKENS if name in fields), None)
    samples = positive(fields.get("samples per second"))
    if time_s is None and flops is None and samples is None:
        return None
    return Step(
        number,
        whole(iteration),
        time_s,
        tokens_per_s_per_gpu=tokens,
        samples_per_s=samples,
        tflops_per_gpu=flops,
        global_batch=positive(fields.get("global batch size")),
    )


def _timers(line: Line, text: str) -> Iterator[Timer]:
    for name, value in labelled(text).items():
        yield from _timer(line, name, value.split()[0] if value else None)


def _timer(line: Line, name: str, value: str | None) -> Iterator[Timer]:
    time_ms = positive(value)
    if time_ms is not None and not _NO_PHASE.search(name):
        yield Timer(line.number, name, 1e-3 * time_ms)
