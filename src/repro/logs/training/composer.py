"""Console logs of Composer and llm-foundry: a block of values per batch."""

import re
from collections.abc import Sequence
from dataclasses import replace

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "Composer"
# Fewer batches per second are printed with too few digits.
_FEWEST_PER_S = 0.1
_BATCH = re.compile(r"\[(?:epoch=\d+\]\[)?batch=(\d+)(?:/\d+)?\]")
_VALUE = re.compile(
    r"\bthroughput/((?:device/)?(?:batches|samples|tokens)_per_sec|device/mfu):\s*([\d.eE+-]+)"
)
_MEMORY = re.compile(r"\bmemory/(?:peak_allocated_mem|max_allocated_mem):\s*([\d.eE+-]+)")
_NODES = {
    "gpus_per_node": re.compile(r"\bnum_gpus_per_node:\s*(\d+)"),
    "nodes": re.compile(r"\bnum_nodes:\s*(\d+)"),
    "global_batch": re.compile(r"\bglobal_train_batch_size:\s*(\d+)"),
    "seq": re.compile(r"\bmax_seq_len:\s*(\d+)"),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read blocks of values; a block without a throughput, as of the first batches, is no step.

    Throughputs are means over a window of batches; `batches_per_sec` has too few digits of large
    batches to be a time.
    """
    steps: list[Step] = []
    stated: dict[str, float] = {}
    block: Step | None = None
    for line in lines:
        text = line.text
        if found := _BATCH.search(text):
            block = Step(line.number, whole(found[1]), running_mean=True)
        if block is None and "throughput/" in text:
            block = Step(line.number, running_mean=True)
        if block is not None and (found := _VALUE.search(text)):
            value = positive(found[2])
            known = bool(steps) and steps[-1].line == block.line
            block = _with(block, found[1], value)
            if known:
                steps[-1] = block
            else:
                steps.append(block)
        elif block is not None and steps and (found := _MEMORY.search(text)):
            # In gigabytes.
            block = replace(block, memory_bytes=1e9 * (positive(found[1]) or 0.0))
        for name, pattern in _NODES.items():
            if found := pattern.search(text):
                stated[name] = float(found[1])
    if "nodes" in stated and "gpus_per_node" in stated:
        stated["gpus"] = stated["nodes"] * stated["gpus_per_node"]
    return ToolLog(TOOL, tuple(steps), stated=stated)


def _with(step: Step, name: str, value: float | None) -> Step:
    if name == "tokens_per_sec":
        return replace(step, tokens_per_s=value)
    if name == "device/tokens_per_sec":
        return replace(step, tokens_per_s_per_gpu=value)
    if name == "samples_per_sec":
        return replace(step, samples_per_s=value)
    if name == "device/mfu":
        return replace(step, mfu=value)
    if name == "batches_per_sec" and value is not None and value >= _FEWEST_PER_S:
        return replace(step, time_s=1 / value)
    return step
