"""Reader of PyTorch's flight recorder in JSON: collectives of one rank that completed.

Fields are from torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (`dump_json`). Its pickles are
not read, because a pickle runs code when it is loaded.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from repro.logs.kineto import COLLECTIVES, DTYPES
from repro.logs.measurements import (
    POINT_TO_POINT,
    Measurement,
    Reading,
    measured,
    require_ranks,
)
from repro.logs.truncated_json import read_json

SIGN = r'"(?:collective_seq_id|pg_config)"\s*:'


def read_flight_recorder(text: str, ranks: int | None) -> Reading:
    """Read a dump: a measurement per completed collective that was timed.

    The time is that of the GPU's events (`duration_ms`), recorded with TORCH_NCCL_ENABLE_TIMING=1.
    The times at which a watchdog discovered an operation are not used: they are rounded to its
    period. The size is the larger of a rank's input and output.

    Parameters
    ----------
    text : str
        Content of the file.
    ranks
        Number of ranks where the dump does not list those of a process group.
    """
    skipped: list[str] = []
    content = read_json(text, "entries", skipped)
    groups = content.get("pg_config")
    rows: list[Measurement] = []
    for number, entry in enumerate(content.get("entries", [])):
        try:
            rows.append(_row(entry, groups if isinstance(groups, dict) else {}, ranks))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as problem:
            reason = f"has no {problem}" if isinstance(problem, KeyError) else str(problem)
            skipped.append(f"entries[{number}]: {reason}")
    return rows, skipped


def _row(entry: Any, groups: Mapping[str, Any], ranks: int | None) -> Measurement:
    called = (str(entry["profiling_name"]).partition(":")[2].split() or [""])[0]
    collective = COLLECTIVES.get(called)
    if collective is None:
        raise ValueError(f"operation {called!r} is not supported")
    if entry.get("state") != "completed":
        raise ValueError(f"{called} is {entry.get('state')}, not completed")
    if entry.get("duration_ms") is None:
        raise ValueError(f"{called} has no duration_ms; fix: set TORCH_NCCL_ENABLE_TIMING=1")
    n = POINT_TO_POINT if collective == "send_recv" else _ranks(entry, groups, ranks)
    dtype, width = DTYPES[str(entry["input_dtypes"][0])]
    size = max(_elements(entry["input_sizes"]), _elements(entry["output_sizes"])) * width
    return measured(collective, dtype, size, n, float(entry["duration_ms"]) * 1e3)


def _ranks(entry: Mapping[str, Any], groups: Mapping[str, Any], ranks: int | None) -> int:
    """Return the size of an entry's process group, whose ranks may be a list or its text."""
    names = [str(entry.get("pg_id")), str((entry.get("process_group") or [""])[0])]
    for name in names:
        listed = groups.get(name, {}).get("ranks") if isinstance(groups.get(name), dict) else None
        if isinstance(listed, str):
            listed = json.loads(listed)
        if isinstance(listed, list) and listed:
            return len(listed)
    return require_ranks(ranks)


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(int(length) for length in shape) for shape in shapes)
