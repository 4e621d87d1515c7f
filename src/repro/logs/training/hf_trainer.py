"""Logs of Hugging Face's Trainer: progress bars, whose times are running means, and the summary."""

import re
from collections.abc import Sequence

from repro.logs.training.steps import Line, Step, ToolLog, positive, whole

TOOL = "Hugging Face Trainer"
_SIGN = re.compile(r"['\"](?:learning_rate|train_runtime)['\"]:")
_BAR = re.compile(r"\|\s*(\d+)/(\d+) \[[\d:]+<[\d:?]+,\s*([\d.]+)\s*(s/it|it/s)")
_SUMMARY = re.compile(r"['\"]train_steps_per_second['\"]:\s*['\"]?([\d.eE+-]+)")
_SAMPLES = re.compile(r"['\"]train_samples_per_second['\"]:\s*['\"]?([\d.eE+-]+)")
_TOKENS = re.compile(r"['\"]train_tokens_per_second['\"]:\s*['\"]?([\d.eE+-]+)")
_STATED = {
    "micro_batch": re.compile(r"Instantaneous batch size per device = ([\d,]+)"),
    "global_batch": re.compile(
        r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)"
    ),
}


def read(lines: Sequence[Line]) -> ToolLog:
    """Read the progress bar, or the summary where there is one."""
    bars, summary = [], []
    stated: dict[str, float] = {}
    logged = False
    for line in lines:
        text = line.text
        logged = logged or bool(_SIGN.search(text))
        if found := _BAR.search(text):
            value = positive(found[3])
            if value is not None:
                time_s = value if found[4] == "s/it" else 1 / value
                bars.append(Step(line.number, whole(found[1]), time_s, running_mean=True))
        if found := _SUMMARY.search(text):
            samples, tokens = _SAMPLES.search(text), _TOKENS.search(text)
            steps_per_s = positive(found[1])
            if steps_per_s is not None:
                summary.append(
                    Step(
                        line.number,
                        time_s=1 / steps_per_s,
                        samples_per_s=positive(samples[1]) if samples else None,
                        tokens_per_s=positive(tokens[1]) if tokens else None,
                        running_mean=True,
                    )
                )
        for name, pattern in _STATED.items():
            if (found := pattern.search(text)) and (size := positive(found[1])):
                stated[name] = size
    steps = summary or (bars if logged or stated else [])
    return ToolLog(TOOL, tuple(steps), stated=stated)
