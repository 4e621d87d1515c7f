"""Training logs of NeMo: lines of NeMo 2.0, and progress bars of NeMo 1 and PyTorch Lightning."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "NeMo"
_TIMING = re.compile(r"train_step_timing(?: in s)?\s*[:=]\s*([\d.eE+-]+)")
_ITERATION = re.compile(r"(?:iteration |global_step\s*[:=]\s*)(\d+)")
_BATCH = re.compile(r"global_batch_size\s*[:=]\s*(\d+)")
_FLOPS = re.compile(r"TFLOPS_per_GPU\s*[:=]\s*([\d.eE+-]+)")
_MEMORY = re.compile(r"max_memory_allocated\s*[:=]\s*(\d+)")
# Name of an experiment: pretrain_llama3_8b_bf16_1nodes_tp1_pp1_cp1_vp1_2mbs_128gbs.
_NAME = re.compile(r"_(\d+)nodes_tp(\d+)_pp(\d+)_cp(\d+)_(?:vp\w+?_)?(?:ep\d+_)?(\d+)mbs_(\d+)gbs")
_SETTING = re.compile(r"^\s*(global_batch_size|micro_batch_size|seq_length):\s*(\d+)\s*$")
_FIELDS = {
    "global_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "seq_length": "seq",
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations, and sizes from the experiment's name and settings."""
    steps = []
    stated: dict[str, float] = {}
    for line in lines:
        if found := _TIMING.search(line.text):
            number, batch = _ITERATION.search(line.text), _BATCH.search(line.text)
            flops, memory = _FLOPS.search(line.text), _MEMORY.search(line.text)
            steps.append(
                Step(
                    line.number,
                    whole(number[1]) if number else None,
                    positive(found[1]),
                    tflops_per_gpu=positive(flops[1]) if flops else None,
                    memory_bytes=positive(memory[1]) if memory else None,
                    global_batch=positive(batch[1]) if batch else None,
                )
            )
        elif found := _NAME.search(line.text):
            names = ("tp", "pp", "cp", "micro_batch", "global_batch")
            stated |= dict(zip(names, map(float, found.groups()[1:]), strict=True))
            stated["nodes"] = float(found[1])
        elif found := _SETTING.match(line.text):
            stated[_FIELDS[found[1]]] = float(found[2])
    return ToolLog(TOOL, tuple(steps), stated=stated)
