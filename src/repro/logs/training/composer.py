"""Console logs of Composer and llm-foundry: a block of values per batch."""

import re
from collections.abc import Sequence
from typing import Any

from repro.logs.training.steps import Line, Step, ToolLog, positive, stated_in, whole

TOOL = "Composer"
# Batches per second are printed with four digits behind the point.
_FEWEST_PER_S = 0.1
_BATCH = re.compile(r"\[(?:epoch=\d+\]\[)?batch=(\d+)(?:/\d+)?\]")
_VALUE = re.compile(
    r"\b(throughput/(?:device/)?(?:batches|samples|tokens)_per_sec|throughput/device/mfu"
    r"|time/(?:batch|sample)|memory/(?:peak|max)_allocated_mem):\s{0,8}([\d.eE+-]+)"
)
_NODES = {
    "gpus_per_node": re.compile(r"\bnum_gpus_per_node:\s?(\d+)"),
    "nodes": re.compile(r"\bnum_nodes:\s?(\d+)"),
    "global_batch": re.compile(r"\bglobal_train_batch_size:\s?(\d+)"),
    "seq": re.compile(r"\bmax_seq_len:\s?(\d+)"),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read blocks of values; a block without a throughput, as of the first batches, is no step.

    Throughputs are means over a window of batches; `batches_per_sec` has too few digits of large
    batches to be a time.
    """
    blocks: list[dict[str, Any]] = []
    stated: dict[str, float] = {}
    for line in lines:
        text = line.text
        if "batch=" in text and (found := _BATCH.search(text)):
            blocks.append({"line": line.number, "iteration": whole(found[1])})
        for name, value in _VALUE.findall(text) if "/" in text else ():
            if not blocks:
                blocks.append({"line": line.number, "iteration": None})
            blocks[-1][name] = positive(value)
        if "num_" in text or "global_train" in text or "max_seq" in text:
            stated |= stated_in(text, _NODES)
    if "nodes" in stated and "gpus_per_node" in stated:
        stated["gpus"] = stated["nodes"] * stated["gpus_per_node"]
    steps = tuple(_step(block) for block in blocks if any("throughput/" in key for key in block))
    return ToolLog(TOOL, steps, stated=stated)


def _step(block: dict[str, Any]) -> Step:
    batches, samples = block.get("time/batch"), block.get("time/sample")
    per_s = block.get("throughput/batches_per_sec")
    memory = block.get("memory/peak_allocated_mem") or block.get("memory/max_allocated_mem")
    batch = samples / batches if batches and samples else None
    return Step(
        block["line"],
        block["iteration"],
        1 / per_s if per_s and per_s >= _FEWEST_PER_S else None,
        tokens_per_s=block.get("throughput/tokens_per_sec"),
        tokens_per_s_per_gpu=block.get("throughput/device/tokens_per_sec"),
        samples_per_s=block.get("throughput/samples_per_sec"),
        mfu=block.get("throughput/device/mfu"),
        # In gigabytes.
        memory_bytes=1e9 * memory if memory else None,
        global_batch=batch if batch and batch.is_integer() else None,
        running_mean=True,
    )
