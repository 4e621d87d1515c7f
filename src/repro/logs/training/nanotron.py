"""Training logs of nanotron, whose numbers have suffixes such as 11.5K."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, labelled, positive, whole

TOOL = "nanotron"
_STEP = re.compile(r"iteration: (\d+) / (\d+) \|(.*)")


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations; lines that are cut before their number are not read."""
    steps = []
    for line in lines:
        found = _STEP.search(line.text)
        fields = labelled(found[3]) if found else {}
        stated = fields.get("elapsed_time_per_iteration_ms") or fields.get("time_per_iteration_ms")
        time_ms = positive(stated)
        if found and time_ms is not None:
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    1e-3 * time_ms,
                    tokens_per_s=positive(fields.get("tokens_per_sec")),
                    tokens_per_s_per_gpu=positive(fields.get("tokens_per_sec_per_gpu")),
                    tflops_per_gpu=positive(fields.get("model_tflops_per_gpu")),
                    global_batch=positive(fields.get("global_batch_size")),
                )
            )
    return ToolLog(TOOL, tuple(steps))
