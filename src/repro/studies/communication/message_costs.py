"""Number, bytes and time of small messages: a log compared with a sweep of collectives."""

import numpy as np
import pandas as pd
import xarray as xr

from repro.errors import ReproError
from repro.results.collectives import OUT_OF_PLACE, bandwidths
from repro.results.communication import transfers
from repro.results.store import why_not_run

# Calls that are so short that latency is this much of their time count as small.
_SMALL = 0.5
_CURVES = {"send": "send_recv"}


def logged_volumes(calls: pd.DataFrame) -> pd.DataFrame:
    """`role`, `operation`, `ranks`, `bytes` and `calls` of a rank and iteration, on average."""
    moved = calls[calls.operation != "barrier"].assign(ranks=lambda frame: frame.ranks.map(len))
    columns = ["role", "operation", "ranks", "bytes"]
    rank_iterations = len(calls[["iteration", "rank"]].drop_duplicates())
    return (moved.groupby(columns).size() / rank_iterations).rename("calls").reset_index()


def message_costs(volumes: pd.DataFrame, sweep: xr.Dataset) -> pd.DataFrame:
    """Return number, bytes and time of small messages, by protocol and role of the group.

    The time of a call is interpolated on the sweep's curve, between logarithms of sizes; beyond the
    smallest and largest sizes, the rate stays the same. Tensor parallelism is inside a node, other
    groups span all ranks.

    Parameters
    ----------
    volumes
        `role`, `operation`, `bytes` and `calls` of a rank in an iteration.
    sweep
        By the schema of `repro.results.collectives`, one source, measured or predicted.

    Returns
    -------
    DataFrame
        `protocol`, `role`; `calls`; `small_calls` and `small_bytes`, the shares of calls and bytes
        that are small: latency, the time of the smallest size, is half of their time or more;
        `time_s` of all calls of an iteration, and `latency_time`, the share of it that is latency.

    Raises
    ------
    ReproError
        The sweep lacks a collective that was called.
    """
    curves = bandwidths(sweep)["time_s"].isel(source=0, gpus=-1).sel(in_place=OUT_OF_PLACE)
    rows = []
    moved = volumes[~volumes.operation.isin(("recv", "barrier"))].replace({"operation": _CURVES})
    if missing := sorted({*moved.operation} - {*curves["collective"].values.tolist()}):
        raise ReproError(
            f"calls of {', '.join(missing)} have no costs, since the sweep has none; add them to "
            "`collectives` of the profile in params/collectives.yaml"
        )
    for protocol in curves["protocol"].values:
        for role, own in moved.groupby("role", sort=False):
            layout = "node" if role == "tensor" else "world"
            here = curves.sel(protocol=protocol, layout=layout)
            found = [
                _on_curve(size, here.sel(collective=name).dropna("size_bytes"))
                for name, size in zip(own.operation, own.bytes.astype(float), strict=True)
            ]
            time_s, empty_s = np.array(found).T
            latency_s = np.minimum(empty_s, time_s)
            calls, size = own.calls.to_numpy(), own.bytes.to_numpy()
            small = latency_s >= _SMALL * time_s
            total_s = (calls * time_s).sum()
            rows.append(
                {
                    "protocol": str(protocol),
                    "role": role,
                    "calls": calls.sum(),
                    "small_calls": calls[small].sum() / calls.sum(),
                    "small_bytes": (calls * size)[small].sum() / (calls * size).sum(),
                    "time_s": total_s,
                    "latency_time": (calls * latency_s).sum() / total_s,
                }
            )
    return pd.DataFrame(rows)


def logged_costs(results: xr.Dataset, layout: str, sweep: xr.Dataset) -> pd.DataFrame:
    """Return `message_costs` of a layout's log; the reason if it or the sweep was not run."""
    for dataset in (results, sweep):
        if not dataset.data_vars:
            return pd.DataFrame({"not run": [why_not_run(dataset)]})
    return message_costs(logged_volumes(transfers(results.sel(layout=layout))), sweep)


def _on_curve(size_bytes: float, curve: xr.DataArray) -> tuple[float, float]:
    """Time of a size, and of the smallest one."""
    sizes, times = curve["size_bytes"].values.astype(float), curve.values
    if not sizes.size:
        return np.nan, np.nan
    beyond = max(1.0, size_bytes / sizes[-1])
    at = np.interp(np.log(min(size_bytes, sizes[-1])), np.log(sizes), np.log(times))
    return float(np.exp(at) * beyond), float(times[0])
