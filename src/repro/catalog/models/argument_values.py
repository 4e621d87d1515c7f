"""Values of arguments by name, from lines of options, assignments, or Megatron-LM's own list."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from repro.catalog.models.decoder_rules import MOST_LAYERS
from repro.errors import ReproError

_PRINTED = re.compile(r"(?:^|[\s\]>|])([a-z]\w*) \.{3,} ?(.*)$")
_ASSIGNED = re.compile(r"^[+~]*((?:[A-Za-z]\w*\.)*[A-Za-z]\w*)\s*[=:]\s*(.*)$")
_WHOLE = re.compile(r"-?\d{1,18}")
_DECIMAL = re.compile(r"-?\d{0,18}\.\d{0,18}(?:e[+-]?\d{1,3})?|-?\d{1,18}e[+-]?\d{1,3}")
# Arguments that give dimensions or the plan, by what other programs call them.
_ALIASES = {
    "encoder_seq_length": "seq_length",
    "context_length": "seq_length",
    "tensor_parallel": "tensor_model_parallel_size",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "model_parallel_size": "tensor_model_parallel_size",
    "virtual_pipeline_model_parallel": "virtual_pipeline_model_parallel_size",
    "num_moe_experts": "num_experts",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "moe_router_top_k": "moe_router_topk",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    "gated_linear_unit": "swiglu",
}


@dataclass(frozen=True)
class ArgumentValues:
    """Values by name.

    Attributes
    ----------
    style
        How they are written: as `options` (--num-layers 32), as `assignments` (num_layers: 32), or
        `printed` by Megatron-LM, which then has all of them.
    """

    values: dict[str, Any]
    style: Literal["options", "assignments", "printed"]


def read_values(text: str) -> ArgumentValues:
    """Read arguments by name; names have underscores, and no sections.

    Raises
    ------
    ReproError
        A quote is not closed.
    """
    printed = dict(
        (found[1], _value(found[2]))
        for line in text.splitlines()
        if (found := _PRINTED.search(line.rstrip()))
    )
    if len(printed) > 1:
        return ArgumentValues(_renamed(printed), "printed")
    values: dict[str, Any] = {}
    style: Literal["options", "assignments"] = "assignments"
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("#") or not line:
            continue
        if "--" in line:
            values |= _options(line)
            style = "options"
        elif found := _ASSIGNED.match(line):
            values[found[1].rsplit(".", 1)[-1]] = _value(found[2].strip("'\""))
    return ArgumentValues(_renamed(values), style)


def _options(line: str) -> dict[str, Any]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ReproError(f"arguments {line[:40]!r}: {error}; fix: close the quote") from None
    values: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, _, value = word[2:].partition("=")
            name = name.rsplit(".", 1)[-1]
            values[name] = _value(value) if value else True
        elif found := _ASSIGNED.match(word):
            values[found[1].rsplit(".", 1)[-1]] = _value(found[2])
            name = ""
        elif name and values[name] is True:
            values[name] = _value(word)
    return values


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    plain = {name.replace("-", "_").lower(): value for name, value in values.items()}
    return {_ALIASES.get(name, name): value for name, value in plain.items() if value is not None}


def _value(text: str) -> Any:
    plain = {"true": True, "false": False, "none": None, "null": None, "": None}
    if text.lower() in plain:
        return plain[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) and text.strip("-.") else text


def layer_pattern(values: Mapping[str, Any], name: str, layers: int) -> list[int]:
    """Read a pattern of layers: every N-th, or a sum of lists such as `[0]*3+[1]*58`.

    Raises
    ------
    ReproError
        It is not understood, or has another number of layers.
    """
    given = values.get(name, 1)
    if isinstance(given, int) and given >= 1:
        return [int(one % given == 0) for one in range(layers)]
    text = str(given).replace(" ", "")
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    pattern: list[int] = []
    for part in re.split(r"\+(?![^\[]*\])", text):
        found = re.fullmatch(r"\(*\[([01](?:,[01])*)\](?:\*(\d{1,4}))?\)*", part)
        if not found:
            raise ReproError(f"{name} {given!r:.40}: not understood; write [0]*3+[1]*58 or N")
        pattern += [int(one) for one in found[1].split(",")] * int(found[2] or 1)
    if len(pattern) != layers:
        raise ReproError(f"{name} has {len(pattern)} layers, num_layers is {layers}")
    return pattern


def count_chunks(layout: str) -> int:
    """Count the model chunks of a layout such as `Et*2|(tt|)*5t|tmL`.

    Raises
    ------
    ReproError
        It is not understood.
    """
    plain = layout.replace(" ", "").replace(",", "")
    while repeated := re.search(r"\(([^()*]*)\)\*(\d{1,3})|([^()*\d])\*(\d{1,3})", plain):
        inner, times = repeated[1] or repeated[3] or "", int(repeated[2] or repeated[4])
        plain = plain[: repeated.start()] + inner * times + plain[repeated.end() :]
        if len(plain) > MOST_LAYERS:
            break
    if len(plain) > MOST_LAYERS or not re.fullmatch(r"[EtmLd|]+", plain, re.IGNORECASE):
        raise ReproError(f"pipeline_model_parallel_layout {layout!r:.40}: not understood")
    return plain.count("|") + 1
