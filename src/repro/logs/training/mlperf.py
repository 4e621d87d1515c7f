"""Results of MLPerf training: `:::MLLOG` lines of JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from repro.logs.training.steps import Line, Step, ToolLog

TOOL = "MLPerf"
_LINE = re.compile(r":::MLLOG\s{0,8}(\{.*\})")
# Benchmarks whose samples are tokens.
_OF_TOKENS = ("gpt3",)
_STATED = {
    "global_batch_size": "global_batch",
    "max_sequence_length": "seq",
    "sequence_length": "seq",
    "micro_batch_size": "micro_batch",
    "tensor_parallelism": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallelism": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallelism": "cp",
    "context_parallel_size": "cp",
    "expert_parallelism": "ep",
    "expert_model_parallel_size": "ep",
    "number_of_nodes": "nodes",
    "accelerators_per_node": "gpus_per_node",
    "number_of_ranks": "gpus",
    "world_size": "gpus",
    "num_gpus": "gpus",
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read step times or throughputs, and times of blocks where neither is printed."""
    steps: list[Step] = []
    blocks: list[Step] = []
    stated: dict[str, float] = {}
    began: tuple[float, float] | None = None
    tokens = False
    for line in lines:
        found = _LINE.search(line.text)
        try:
            entry = json.loads(found[1]) if found else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict):
            continue
        key, value = entry.get("key"), entry.get("value")
        metadata = entry.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        if key in _STATED and (size := _positive(value)):
            stated[_STATED[key]] = size
        tokens = tokens or (key == "submission_benchmark" and value in _OF_TOKENS)
        if key == "tracked_stats" and isinstance(value, dict):
            step = _tracked(line, value, metadata)
            if step is not None:
                steps.append(step)
        time_ms, samples = _positive(entry.get("time_ms")), _samples(metadata)
        if time_ms is None:
            continue
        if key in ("block_start", "epoch_start") and samples is not None:
            began = time_ms, samples
        elif key in ("block_stop", "epoch_stop") and began and samples is not None:
            seconds, trained = 1e-3 * (time_ms - began[0]), samples - began[1]
            if seconds > 0 and trained > 0:
                blocks.append(Step(line.number, samples_per_s=trained / seconds))
            began = None
    if "nodes" in stated and "gpus_per_node" in stated:
        stated.setdefault("gpus", stated["nodes"] * stated["gpus_per_node"])
    found_steps = steps or blocks
    if tokens:
        found_steps = [
            replace(step, tokens_per_s=step.samples_per_s, samples_per_s=None)
            for step in found_steps
        ]
    return ToolLog(TOOL, tuple(found_steps), stated=stated)


def _tracked(line: Line, value: dict[str, Any], metadata: dict[str, Any]) -> Step | None:
    time_s, throughput = _positive(value.get("train_step_time")), _positive(value.get("throughput"))
    if time_s is None and throughput is None:
        return None
    step = metadata.get("step")
    number = int(step) if isinstance(step, (int, float)) and 0 <= step < 1e15 else None
    return Step(line.number, number, time_s, samples_per_s=throughput)


def _samples(metadata: dict[str, Any]) -> float | None:
    for name in ("samples_count", "step_num", "epoch_num", "first_epoch_num"):
        value = metadata.get(name)
        count = 0.0 if value == 0 else _positive(value)
        if count is not None:
            return count
    return None


def _positive(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e30:
        return float(value)
    return None
