"""Training logs of nanoGPT and llm.c."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "nanoGPT or llm.c"
_NANOGPT = re.compile(r"\biter (\d+): loss -?[\w.]+, time ([\d.]+)\s?ms(?:, mfu (-?[\d.]+)\s?%)?")
_LLM_C = re.compile(
    r"\bstep\s{1,8}(\d{1,15})/\d{1,15} \|(?:[^|]*\|){1,4}?\s{0,8}([\d.]{1,15})\s?ms\s?\|(.*)"
)
_MFU = re.compile(r"(-?[\d.]{1,15})\s?%[^|]*MFU")
_TOKENS = re.compile(r"([\d.]{1,15})\s?tok/s")


def read(lines: Sequence[Line]) -> ToolLog:
    """Read iterations; llm.c's tokens per second are those of all GPUs."""
    steps = []
    for line in lines:
        if "ms" not in line.text:
            continue
        if found := _NANOGPT.search(line.text):
            steps.append(Step(line.number, whole(found[1]), _ms(found[2]), mfu=_percent(found[3])))
        elif found := _LLM_C.search(line.text):
            mfu, tokens = _MFU.search(found[3]), _TOKENS.search(found[3])
            steps.append(
                Step(
                    line.number,
                    whole(found[1]),
                    _ms(found[2]),
                    tokens_per_s=positive(tokens[1]) if tokens else None,
                    mfu=_percent(mfu[1]) if mfu else None,
                )
            )
    return ToolLog(TOOL, tuple(step for step in steps if step.time_s is not None))


def _ms(text: str) -> float | None:
    value = positive(text)
    return None if value is None else 1e-3 * value


def _percent(text: str | None) -> float | None:
    try:
        return float(text) / 100 if text else None
    except ValueError:
        return None
