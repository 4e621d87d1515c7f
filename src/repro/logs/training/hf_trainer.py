"""Logs of Hugging Face's Trainer, TRL and Axolotl: progress bars with mean times, the summary."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, stated_in, whole

TOOL = "Hugging Face Trainer"
_SIGN = re.compile(r"['\"](?:learning_rate|train_runtime)['\"]:")
# A bar of training has no title, unlike those of loading and tokenizing.
_BAR = re.compile(
    r"^\s*(?:\d{1,3}%\|[^|]*\| )?(\d+)/(\d+) \[(?:(\d+):)?(\d\d):(\d\d)<[\d:?]+,\s{1,4}([\d.]+)"
    r"\s?(s/it|it/s)"
)
_SUMMARY = {
    "steps": re.compile(r"['\"]?\btrain_steps_per_second['\"]?\s{0,20}[:=]\s{0,20}['\"]?([\d.]+)"),
    "samples": re.compile(
        r"['\"]?\btrain_samples_per_second['\"]?\s{0,20}[:=]\s{0,20}['\"]?([\d.]+)"
    ),
    "tokens": re.compile(
        r"['\"]?\btrain_tokens_per_second['\"]?\s{0,20}[:=]\s{0,20}['\"]?([\d.]+)"
    ),
}
_STATED = {
    "micro_batch": re.compile(r"Instantaneous batch size per device = ([\d,]+)"),
    "global_batch": re.compile(
        r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)"
    ),
    "steps": re.compile(r"Total optimization steps = ([\d,]+)"),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read the summary, or the progress bar of training where there is none.

    Bars of evaluation have another length: that of training is stated, or took longest. Tokens per
    second of the summary are those of one GPU.
    """
    bars: dict[int, list[Step]] = {}
    elapsed_s: dict[int, float] = {}
    summary: list[Step] = []
    stated: dict[str, float] = {}
    logged = False
    for line in lines:
        text = line.text
        logged = logged or (("'" in text or '"' in text) and bool(_SIGN.search(text)))
        if (
            "it" in text
            and (found := _BAR.match(text))
            and (value := positive(found[6])) is not None
        ):
            time_s = value if found[7] == "s/it" else 1 / value
            total = whole(found[2]) or 0
            bars.setdefault(total, []).append(
                Step(line.number, whole(found[1]), time_s, running_mean=True)
            )
            elapsed_s[total] = 3600 * float(found[3] or 0) + 60 * float(found[4]) + float(found[5])
        found_in = stated_in(text, _SUMMARY) if "per_second" in text else {}
        if "steps" in found_in:
            summary.append(
                Step(
                    line.number,
                    time_s=1 / found_in["steps"],
                    samples_per_s=found_in.get("samples"),
                    tokens_per_s_per_gpu=found_in.get("tokens"),
                    running_mean=True,
                )
            )
        if "batch size" in text or "optimization" in text:
            stated |= stated_in(text, _STATED)
    length = stated.pop("steps", max(elapsed_s, key=lambda total: elapsed_s[total], default=0))
    steps = summary or (bars.get(int(length), []) if logged or stated else [])
    return ToolLog(TOOL, tuple(steps), stated=stated)
