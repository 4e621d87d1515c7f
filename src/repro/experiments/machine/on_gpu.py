"""Common parts of GPU measurements: failures of a GPU, and attributes of datasets."""

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
    """Return the result of some work; None where the GPU has no kernel or no memory for it.

    The cause is added to `reasons`.
    """
    try:
        return work()
    except RuntimeError as error:
        reasons[what] = f"{type(error).__name__}: {one_line(error)[:_LONGEST_REASON]}"
    gc.collect()
    torch.cuda.empty_cache()
    return None


def about(long_name: str, units: str) -> dict[str, str]:
    """Return the attributes of a variable."""
    return {"long_name": long_name, "units": units}


def attributes(
    title: str, asked: Entry, not_run: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the attributes of a dataset: title, reasons of missing values, and provenance."""
    return {
        "title": title,
        "not_run": json.dumps(not_run or {}),
        "source": "cluster",
        "ran_on": json.dumps([accelerator()]),
        "provenance": provenance(asked.model_dump(mode="json")),
    }
