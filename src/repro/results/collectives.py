"""Datasets of measured collectives, and their bandwidths with intervals.

Dimensions
----------
source, protocol, gpus, layout
    Configuration and ranks: `repro.catalog.studies.collectives.Layout`.
collective, in_place, size_bytes
    The call; the size is the requested one, in bytes by nccl-tests' definition.
repeat, rank
    The raw samples.

Values that were not measured are NaN. `docs/reference/quantities.md` defines every variable.
"""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import bdtr

from repro.collectives.definitions import bus_factor
from repro.collectives.records import CollectiveSweep
from repro.collectives.traffic import received_bytes
from repro.observe.nic import FloatArray
from repro.observe.precision import CONFIDENCE, half_width
from repro.results.outcome import Outcome
from repro.results.schema import said

_CASE = ("layout", "collective", "in_place", "size_bytes")
_WHERE = ("source", "protocol", "gpus")
OUT_OF_PLACE = "out of place"
PLACES = {False: OUT_OF_PLACE, True: "in place"}


def sweep_dataset(asked: CollectiveSweep, outcome: Outcome) -> xr.Dataset:
    """Return the dataset of one sweep, without its coordinates."""
    records = sorted(outcome.sweeps, key=lambda record: record.rank)
    axes: list[list[Any]] = [
        list(asked.layouts),
        list(asked.collectives),
        list(PLACES),
        list(asked.sizes_bytes),
    ]
    shape = tuple(len(axis) for axis in axes)
    # A size ends at the target precision; repeats that it did not need are NaN.
    times = np.full((*shape, asked.most_repeats, len(records)), np.nan)
    sent, received = (np.full((*shape, len(records)), np.nan) for _ in range(2))
    calls, moved = (np.full(shape, np.nan) for _ in range(2))
    for column, record in enumerate(records):
        for found in record.measurements:
            keys = (found.layout, found.collective, found.in_place, found.requested_bytes)
            at: tuple[Any, ...] = tuple(
                axis.index(key) for axis, key in zip(axes, keys, strict=True)
            )
            times[(*at, slice(len(found.time_s)), column)] = found.time_s
            sent[(*at, column)], received[(*at, column)] = found.sent_bytes, found.received_bytes
            calls[at], moved[at] = found.calls, found.size_bytes
    group = [records[0].group_ranks[layout] for layout in asked.layouts]
    variables = {
        "call_time_s": ((*_CASE, "repeat", "rank"), times, "time of a call on the rank", "s"),
        "sent_bytes": ((*_CASE, "rank"), sent, "sent by the rank's interface in a call", "B"),
        "received_bytes": ((*_CASE, "rank"), received, "received by it in a call", "B"),
        "calls": (_CASE, calls, "calls in a repeat", "1"),
        "moved_bytes": (_CASE, moved, "size that was moved", "B"),
        "group_ranks": (("layout",), np.array(group, dtype=float), "ranks of a group", "1"),
    }
    # The links of real nodes are not set.
    if outcome.links:
        rates = np.array([check.set_gbps for check in outcome.links])
        variables["link_set_gbps"] = (("level",), rates, "rate the links were set to", "Gbit/s")
    dataset = xr.Dataset(
        {
            name: xr.Variable(dims, values, {"long_name": long_name, "units": units})
            for name, (dims, values, long_name, units) in variables.items()
        },
        coords={
            **dict(zip(_CASE, axes, strict=True)),
            "in_place": list(PLACES.values()),
            "repeat": range(asked.most_repeats),
            "rank": [record.rank for record in records],
            "level": [check.level for check in outcome.links],
        },
    )
    return dataset.assign_attrs(said(outcome))


def bandwidths(results: xr.Dataset) -> xr.Dataset:
    """Return time, algorithm bandwidth and bus bandwidth of every case, each with its interval.

    Predicted and published results have them already. A repeat's time is that of its slowest rank.
    The interval is that of the median over repeats at `CONFIDENCE` or more. It comes from order
    statistics, which need no distribution, or from Student's t if there are too few repeats.

    Returns
    -------
    Dataset
        `time_s`, `algbw_GBps`, `busbw_GBps` (1e9 B/s), each with `_low` and `_high`; `full_scale_`
        bandwidths are the emulated ones over the attribute `rate_scale`.

    Examples
    --------
    >>> results = xr.Dataset({"busbw_GBps": ("size_bytes", [10.0])})
    >>> bandwidths(results).busbw_GBps.item()
    10.0
    """
    if "call_time_s" not in results:
        return results
    slowest = results["call_time_s"].max("rank")
    low, high = xr.apply_ufunc(
        median_interval,
        slowest,
        input_core_dims=[["repeat"]],
        output_core_dims=[[], []],
        vectorize=True,
    )
    times = {"": slowest.median("repeat"), "_low": low, "_high": high}
    factor = bus_factors(results)
    scale = float(results.attrs.get("rate_scale", 1.0))
    found = {}
    for end, time in times.items():
        other = {"": "", "_low": "_high", "_high": "_low"}[end]
        found[f"time_s{end}"] = time
        found[f"algbw_GBps{other}"] = results["moved_bytes"] / time * 1e-9
        found[f"busbw_GBps{other}"] = factor * found[f"algbw_GBps{other}"]
        found[f"full_scale_busbw_GBps{other}"] = found[f"busbw_GBps{other}"] / scale
    return xr.Dataset(found, attrs=results.attrs)


def bus_factors(results: xr.Dataset) -> xr.DataArray:
    """Return `repro.collectives.definitions.bus_factor` of each collective and group."""
    ranks, names = results["group_ranks"], _names(results)
    factors = [bus_factor(name, ranks.values) for name in names]
    return xr.DataArray(
        np.stack(factors, axis=-1),
        coords={**ranks.coords, "collective": names},
        dims=[*ranks.dims, "collective"],
    )


def _names(results: xr.Dataset) -> list[str]:
    return [str(name) for name in results["collective"].values]


def median_ranks(samples: int) -> tuple[int, int]:
    """Return the positions (from 0) of sorted samples that enclose the median with `CONFIDENCE`.

    The number of samples below the median is binomial with 1/2 (David and Nagaraja, Order
    Statistics, section 7.1).
    """
    at_most = bdtr(np.arange(samples + 1), samples, 0.5)
    below = int(np.searchsorted(at_most, (1 - CONFIDENCE) / 2))
    low = max(0, below - 1)
    return low, samples - 1 - low


def median_interval(samples: FloatArray) -> tuple[float, float]:
    """Return the interval of the median at `CONFIDENCE` or more; NaN are no samples.

    With fewer than six samples, the range of the samples has less confidence. Then the interval is
    as wide as that of the mean of lognormal values.
    """
    ordered = np.sort(samples[~np.isnan(samples)])
    if not ordered.size:
        return np.nan, np.nan
    if 2 * 0.5**ordered.size <= 1 - CONFIDENCE:
        low, high = median_ranks(ordered.size)
        return float(ordered[low]), float(ordered[high])
    factor, median = np.exp(half_width(np.log(ordered).tolist())), float(np.median(ordered))
    return float(median / factor), float(median * factor)


def wire_share(results: xr.Dataset, in_place: str = OUT_OF_PLACE) -> xr.DataArray:
    """Return received bytes over the algorithms' volume, for all ranks of a sweep's `world`.

    The received bytes contain headers, acknowledgements and barriers, so only large messages show
    the algorithm: their value is near 1.
    """
    chosen = results.sel(layout="world", in_place=in_place)
    received = chosen["received_bytes"].sum("rank", min_count=1)
    moved = chosen["moved_bytes"].transpose(*received.dims)
    needed = xr.full_like(moved, np.nan)
    for where in moved.stack(case=moved.dims).dropna("case")["case"].values:
        at = dict(zip(moved.dims, where, strict=True))
        size, gpus = int(moved.loc[at]), at["gpus"]
        needed.loc[at] = sum(
            received_bytes(at["collective"], size, rank, gpus) for rank in range(gpus)
        )
    return received / needed


def bandwidth_table(results: xr.Dataset) -> pd.DataFrame:
    """Return bus bandwidths at the largest measured size, in percent of the slowest link used.

    All ranks communicate. A row per collective and place, a column per protocol and number of GPUs;
    empty without links of a known rate.
    """
    if "link_set_gbps" not in results:
        return pd.DataFrame()
    busbw = bandwidths(results)["busbw_GBps"].sel(layout="world").squeeze("source", drop=True)
    link = results["link_set_gbps"].squeeze("source", drop=True).min("level") / 8
    return _table(100 * _at_largest(busbw) / link, ["protocol", "gpus"]).round(1)


def layout_table(results: xr.Dataset) -> pd.DataFrame:
    """Return full-scale bus bandwidths in GB/s at the most GPUs and the largest measured size.

    Calls are out of place. A row per collective, a column per protocol and layout.
    """
    if not results.data_vars:
        return pd.DataFrame()
    chosen = bandwidths(results)["full_scale_busbw_GBps"].isel(gpus=-1, drop=True)
    chosen = chosen.sel(in_place=OUT_OF_PLACE, drop=True).squeeze("source", drop=True)
    return _table(_at_largest(chosen), ["protocol", "layout"]).round(2)


def wire_table(results: xr.Dataset) -> pd.DataFrame:
    """Return `wire_share` by collective and GPUs, a column per size.

    It is a mean over protocols, whose bytes are the same; empty if no bytes were counted.
    """
    if "received_bytes" not in results:
        return pd.DataFrame()
    share = wire_share(results).squeeze("source", drop=True).mean("protocol")
    return _table(share, ["size_bytes"]).round(3)


def _at_largest(values: xr.DataArray) -> xr.DataArray:
    """Return the value at the largest measured size."""
    last = values.notnull().cumsum("size_bytes").argmax("size_bytes")
    return values.isel(size_bytes=last, drop=True).drop_vars("size_bytes", errors="ignore")


def _table(values: xr.DataArray, columns: list[str]) -> pd.DataFrame:
    return values.rename("value").to_series().dropna().unstack(columns)
