"""Communication logs in the schema's datasets: one row per call of a rank."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.phases import PHASES
from repro.catalog.studies.experiments import SWEPT
from repro.collectives.definitions import algbw_GBps, busbw_GBps
from repro.errors import ReproError
from repro.observe.transfers import MESSAGES, OPERATIONS, ROLES, Transfer, check_clocks
from repro.results.store import has_runs, why_not_run
from repro.train.records import RankRecord

_DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool", "other")
# Columns that are numbers in the dataset, and the names that the numbers represent.
_WORDS = {"operation": OPERATIONS, "role": ROLES, "phase": PHASES, "dtype": _DTYPES}
_LONG_NAMES = {
    "iteration": ("recorded iteration", "1"),
    "rank": ("rank that called it", "1"),
    "operation": ("what was called", "1"),
    "role": ("what its process group is for", "1"),
    "group": ("its process group", "1"),
    "bytes": ("size by nccl-tests' definition", "B"),
    "dtype": ("type of its elements", "1"),
    "phase": ("phase of the iteration", "1"),
    "asynchronous": ("whether the caller went on before it was over", "1"),
    "peer": ("rank at a message's other end; -1 for a collective", "1"),
    "start_s": ("when it was called", "s"),
    "end_s": ("when its caller had waited for it", "s"),
}
COLUMNS = tuple(name for name in _LONG_NAMES if name != "group")


def transfer_variables(records: Sequence[RankRecord], origin: float) -> dict[str, xr.Variable]:
    """Return the schema's variables of the communication log; empty if nothing was logged.

    Raises
    ------
    ReproError
        The ranks' clocks are not aligned.
    """
    check_clocks([record.transfers for record in records])
    rows = [(record.rank, one) for record in records for one in record.transfers]
    if not rows:
        return {}
    groups = {ranks: number for number, ranks in enumerate({one.ranks: None for _, one in rows})}
    found = {}
    for name, (long_name, units) in _LONG_NAMES.items():
        values = [_value(name, rank, one, groups, origin) for rank, one in rows]
        attributes = {"long_name": long_name, "units": units}
        if name in _WORDS:
            attributes["flag_meanings"] = ",".join(_WORDS[name])
        found[f"transfer_{name}"] = xr.Variable(
            "transfer", np.array(values, dtype=float), attributes
        )
    members = np.array([",".join(map(str, ranks)) for ranks in groups])
    said = {"long_name": "global ranks of a process group", "units": "1"}
    return {**found, "group_ranks": xr.Variable("group", members, said)}


def _value(
    name: str, rank: int, one: Transfer, groups: dict[tuple[int, ...], int], origin: float
) -> float:
    if name in _WORDS:
        word = getattr(one, name)
        words = _WORDS[name]
        return words.index(word) if word in words else words.index("other")
    special = {"rank": rank, "group": groups[one.ranks], "bytes": one.size_bytes}
    if name in special:
        return special[name]
    return float(getattr(one, name)) - (origin if name.endswith("_s") else 0.0)


def transfers(results: xr.Dataset) -> pd.DataFrame:
    """Return every logged call of one configuration: a row with names in place of numbers.

    Columns are those of `transfer_*` and `ranks`, the group's global ranks.

    Raises
    ------
    ReproError
        Nothing was logged, or there are several configurations.
    """
    one = one_configuration(results)
    if "transfer_bytes" not in one:
        raise ReproError("has no log of communication; run it with log_communication: true")
    if one["transfer_bytes"].dims != ("transfer",):
        raise ReproError(f"has several configurations: {dict(one.sizes)}; select one")
    whole = one[[f"transfer_{name}" for name in _LONG_NAMES]].dropna("transfer", how="all")
    frame = pd.DataFrame({name: whole[f"transfer_{name}"].values for name in COLUMNS})
    for name in _WORDS:
        words = np.array(whole[f"transfer_{name}"].attrs["flag_meanings"].split(","))
        frame[name] = words[frame[name].astype(int)]
    # A configuration that was merged with others may have fewer groups than they.
    members = one["group_ranks"].values[whole["transfer_group"].values.astype(int)]
    frame["ranks"] = [tuple(map(int, str(ranks).split(","))) for ranks in members]
    whole_numbers = ["iteration", "rank", "bytes", "peer"]
    return frame.astype(dict.fromkeys(whole_numbers, int) | {"asynchronous": bool})


def bandwidths_by_group(results: xr.Dataset) -> pd.DataFrame:
    """Return `by_group` of every `layout` of results, or the reason if nothing was run."""
    if not has_runs(results):
        return pd.DataFrame({"not run": [why_not_run(results)]})
    names = [str(name) for name in results["layout"].values]
    tables = {name: by_group(transfers(results.sel(layout=name))) for name in names}
    return pd.concat(tables, names=["layout"]).droplevel(1)


def one_configuration(results: xr.Dataset) -> xr.Dataset:
    """Return results without the dimensions of a configuration that have one value."""
    where = ("source", "model", "protocol", "gpus", *SWEPT)
    return results.squeeze([dim for dim in where if results.sizes.get(dim) == 1])


def by_group(calls: pd.DataFrame) -> pd.DataFrame:
    """Return calls, sizes and bandwidths by role and size of groups, and operation.

    Parameters
    ----------
    calls
        Calls as `transfers` returns them; barriers move nothing and are left out.

    Returns
    -------
    DataFrame
        Mean `calls` and `bytes` per rank and iteration; `smallest_bytes`, `median_bytes`,
        `largest_bytes` of a call; and all sizes over all times, by nccl-tests' definitions with the
        group's own number of ranks. A call's time is that of the rank that called last, because the
        others also wait for it.
    """
    moved = calls[calls.operation != "barrier"].copy()
    moved["time_s"] = moved.end_s - moved.start_s
    moved["group_ranks"] = moved.ranks.map(len)
    one_call = ["iteration", "ranks", "operation"]
    moved["call"] = moved.groupby([*one_call, "rank"]).cumcount()
    least_s = moved.groupby([*one_call, "call"]).time_s.transform("min")
    moved["time_s"] = moved.time_s.where(moved.operation.isin(MESSAGES), least_s)
    rank_iterations = len(calls[["iteration", "rank"]].drop_duplicates())
    grouped = moved.groupby(["role", "group_ranks", "operation"])
    found = pd.DataFrame(
        {
            "calls": grouped.size() / rank_iterations,
            "bytes": grouped.bytes.sum() / rank_iterations,
            "smallest_bytes": grouped.bytes.min(),
            "median_bytes": grouped.bytes.median(),
            "largest_bytes": grouped.bytes.max(),
            "time_s": grouped.time_s.sum() / rank_iterations,
        }
    ).reset_index()
    found["algbw_GBps"] = algbw_GBps(found.bytes, found.time_s)
    found["busbw_GBps"] = [
        float(busbw_GBps("send_recv" if name in MESSAGES else name, ranks, size, time_s))
        for name, ranks, size, time_s in zip(
            found.operation, found.group_ranks, found.bytes, found.time_s, strict=True
        )
    ]
    return found
