"""Training logs of NeMo: lines of NeMo 2.0, and progress bars of NeMo 1 and PyTorch Lightning."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "NeMo"
_TIMING = re.compile(r"train_step_timing(?: in s)?\s{0,4}[:=]\s{0,4}([\d.eE+-]+)")
# Bars abbreviate large numbers of steps (2e+3), but not their own.
_ITERATION = re.compile(r"(?:\biteration |\| ?)(\d+)/\d+|\bglobal_step\s{0,4}[:=]\s{0,4}([\d.e+]+)")
_BATCH = re.compile(r"global_batch_size\s{0,4}[:=]\s{0,4}(\d+)")
_FLOPS = re.compile(r"TFLOPS_per_GPU\s{0,4}[:=]\s{0,4}([\d.eE+-]+)")
_MEMORY = re.compile(r"max_memory_allocated\s{0,4}[:=]\s{0,4}(\d+)")
# Name of an experiment: pretrain_llama3_8b_bf16_1nodes_tp1_pp1_cp1_vp1_2mbs_128gbs.
_NAME = re.compile(
    r"_(\d{1,6})nodes_tp(\d{1,4})_pp(\d{1,4})_cp(\d{1,4})_(?:vp\w{1,8}?_)?(?:ep\d+_)?(?:etp\d+_)?(\d{1,6})mbs_(\d{1,7})gbs"
)
# Settings of NeMo and Megatron-Bridge in YAML.
_SETTING = re.compile(r"^\s*(\w{1,60}):\s{1,8}(\d{1,9})\s*$")
_FIELDS = {
    "global_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "seq_length": "seq",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
}
# GPUs of a node as gpustat lists them.
_LISTED = re.compile(r"^\s{0,4}\[(\d{1,2})\] (?:NVIDIA|AMD) [^|]{1,60}\|")


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
                    whole(number[1] or number[2]) if number else None,
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
        elif (found := _SETTING.match(line.text)) and found[1] in _FIELDS:
            stated[_FIELDS[found[1]]] = float(found[2])
        elif found := _LISTED.match(line.text):
            stated["gpus_per_node"] = max(stated.get("gpus_per_node", 1.0), float(found[1]) + 1)
    if "nodes" in stated and "gpus_per_node" in stated:
        stated["gpus"] = stated["nodes"] * stated["gpus_per_node"]
    return ToolLog(TOOL, tuple(steps), stated=stated)
