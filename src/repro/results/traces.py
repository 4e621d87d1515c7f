"""Communication logs as Chrome traces, which Perfetto and HolisticTraceAnalysis open.

A call is an event as PyTorch's profiler (Kineto) writes a communication kernel. So tools for those
traces read these, `repro busbw` included. A "stream" is the role of process groups.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from repro.atomic import replace_text
from repro.errors import ReproError
from repro.observe.transfers import ROLES
from repro.results.communication import one_configuration, transfers

# Names of types in torch, names of c10's ScalarType, and bytes.
_DTYPES = {
    "float32": ("Float", 4),
    "bfloat16": ("BFloat16", 2),
    "float16": ("Half", 2),
    "float64": ("Double", 8),
    "int64": ("Long", 8),
    "int32": ("Int", 4),
}
# Such tools read stream 0 as no stream.
_STREAMS = {role: number for number, role in enumerate(ROLES, start=7)}


def write_traces(results: xr.Dataset, folder: Path) -> list[Path]:
    """Write a trace of one configuration for each rank, and one of all for Perfetto.

    Parameters
    ----------
    results
        One configuration, with a communication log.
    folder
        Folder for `rank0.json`, `rank1.json` ... and `all_ranks.json`.

    Raises
    ------
    ReproError
        Nothing was logged, there are several configurations, or the folder cannot be written.
    """
    one, calls = one_configuration(results), transfers(results)
    ranks = sorted(set(calls["rank"]))
    by_rank = {rank: [*_steps(one, rank), *_calls(calls[calls["rank"] == rank])] for rank in ranks}
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, events in by_rank.items():
            paths.append(folder / f"rank{rank}.json")
            _write(paths[-1], rank, len(ranks), events)
        paths.append(folder / "all_ranks.json")
        _write(paths[-1], 0, len(ranks), [event for events in by_rank.values() for event in events])
    except OSError as error:
        raise ReproError(f"{folder}: cannot be written ({error.strerror})") from None
    return paths


def _write(path: Path, rank: int, ranks: int, events: list[dict[str, Any]]) -> None:
    head = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": ranks},
        "calls": sum(event["cat"] == "kernel" for event in events),
    }
    # One line per event, so that the complete events of a truncated trace can be read.
    lines = ",\n".join(json.dumps(event) for event in events)
    replace_text(path, json.dumps(head)[:-1] + ', "traceEvents": [\n' + lines + "\n]}\n")


def _steps(one: xr.Dataset, rank: int) -> list[dict[str, Any]]:
    """Return iterations as events, as the profiler marks its steps."""
    starts = one["iteration_start_s"].sel(rank=rank).dropna("iteration")
    times = one["iteration_time_s"].sel(rank=rank).dropna("iteration")
    return [
        {
            **_span(float(start), float(time), rank),
            "name": f"ProfilerStep#{number}",
            "cat": "user_annotation",
            "tid": rank,
        }
        for number, (start, time) in enumerate(zip(starts, times, strict=True))
    ]


def _calls(calls: pd.DataFrame) -> list[dict[str, Any]]:
    events = []
    for number, call in enumerate(calls.to_dict("records")):
        name, width = _DTYPES.get(call["dtype"], ("Byte", 1))
        elements = call["bytes"] // width
        shares = {"all_gather": "In", "reduce_scatter": "Out"}.get(call["operation"])
        counts = {side: elements for side in ("In", "Out")}
        if shares:
            counts[shares] //= len(call["ranks"])
        time_s = call["end_s"] - call["start_s"]
        # Tools find a kernel's iteration by the call that launched it.
        events.append(
            {
                **_span(call["start_s"], 0.0, call["rank"]),
                "name": f"c10d::{call['operation']}",
                "cat": "cuda_runtime",
                "tid": call["rank"],
                "args": {"correlation": number + 1},
            }
        )
        events.append(
            {
                **_span(call["start_s"], 0.0 if np.isnan(time_s) else time_s, call["rank"]),
                "name": f"ncclDevKernel_{call['operation']}",
                "cat": "kernel",
                "tid": _STREAMS[call["role"]],
                "args": {
                    "stream": _STREAMS[call["role"]],
                    "correlation": number + 1,
                    "Collective name": call["operation"],
                    "dtype": name,
                    "In msg nelems": counts["In"],
                    "Out msg nelems": counts["Out"],
                    "Group size": len(call["ranks"]),
                    "Process Group Description": call["role"],
                    "Process Group Ranks": str(list(call["ranks"])),
                },
            }
        )
    return events


def _span(start_s: float, time_s: float, rank: int) -> dict[str, Any]:
    return {"ph": "X", "ts": start_s * 1e6, "dur": time_s * 1e6, "pid": rank}
