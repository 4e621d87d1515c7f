"""What measuring a GPU by itself has in common: what one cannot do, and what datasets say."""

import gc
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from repro.catalog.reading import Entry
from repro.errors import one_line
from repro.observe.environment import accelerator, provenance

_LONGEST_REASON = 120


def possible(work: Callable[[], Any], what: str, reasons: dict[str, str]) -> Any:
    """What some work gives; None, and among the reasons why, where the GPU has no kernel or no
    memory for it."""
    try:
        return work()
    except RuntimeError as error:
        reasons[what] = f"{type(error).__name__}: {one_line(error)[:_LONGEST_REASON]}"
    gc.collect()
    torch.cuda.empty_cache()
    return None


def about(long_name: str, units: str) -> dict[str, str]:
    """Of a variable."""
    return {"long_name": long_name, "units": units}


def attributes(
    title: str, asked: Entry, not_run: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Of a dataset: what it is, of what it says why it is missing, and where all comes from."""
    return {
        "title": title,
        "not_run": json.dumps(not_run or {}),
        "source": "cluster",
        "ran_on": json.dumps([accelerator()]),
        "provenance": provenance(asked.model_dump(mode="json")),
    }
