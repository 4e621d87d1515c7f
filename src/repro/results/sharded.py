"""Quantities of the GPT-350M report: collectives of the distributed optimizer, and throughput.

Functions take datasets of the schema and keep the dimensions of a configuration, as those of
`repro.results.metrics` do. Times, bytes and rates are at full scale.
"""

from collections.abc import Callable

import pandas as pd
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, gradient_bytes
from repro.results.metrics import communication_fraction, iteration_time_s, phase_time_s
from repro.results.store import has_runs

# The two collectives by the phases that hold them.
COLLECTIVES = {"reduce-scatter": "gradient sync", "all-gather": "parameter all-gather"}


def collective_times_s(results: xr.Dataset) -> xr.DataArray:
    """Return mean times of the reduce-scatter and all-gather per iteration, over `collective`."""
    times = [phase_time_s(results, phase) for phase in COLLECTIVES.values()]
    return xr.concat(times, dim="collective").assign_coords(collective=list(COLLECTIVES))


def collective_busbw_GBps(results: xr.Dataset) -> xr.DataArray:
    """Return the report's bandwidth estimate (n-1)/n S / t for S bytes of half-precision weights.

    It is the bus bandwidth of `repro.collectives.definitions`.
    """
    gpus = results["gpus"]
    sizes = _by_model(results, _weight_bytes)
    busbw = (gpus - 1) / gpus * sizes / collective_times_s(results) * 1e-9
    return busbw.where(gpus > 1)


def tokens_per_s_per_gpu(results: xr.Dataset) -> xr.DataArray:
    """Return tokens per second and GPU at full scale, with one micro batch per iteration."""
    tokens = _by_model(results, lambda name: float(model(name).full.sequence_length))
    return tokens * results["micro_batch_size"] / iteration_time_s(results)


def _weight_bytes(name: str) -> float:
    entry = model(name)
    return float(gradient_bytes(entry.family, entry.full, FULL_ELEMENT_BYTES))


def _by_model(results: xr.Dataset, value: Callable[[str], float]) -> xr.DataArray:
    names = results["model"]
    return xr.DataArray([value(str(name)) for name in names.values], coords={"model": names})


def bandwidth_table(results: xr.Dataset) -> pd.DataFrame:
    """Return both collectives' times in ms and bandwidths in GB/s, by model and number of GPUs.

    They are those of the smallest micro batch, on which they do not depend; empty if nothing was
    run.
    """
    if not has_runs(results):
        return pd.DataFrame()
    first = {"source": 0, "protocol": 0, "micro_batch_size": 0}
    columns = {}
    for unit, values in (
        ("ms", 1e3 * collective_times_s(results)),
        ("GB/s", collective_busbw_GBps(results)),
    ):
        shown = values.isel(first, drop=True).sel(gpus=values["gpus"] > 1)
        for name in COLLECTIVES:
            chosen = shown.sel(collective=name, drop=True).transpose("model", "gpus")
            columns[f"{name}, {unit}"] = chosen.to_series()
    return pd.DataFrame(columns).sort_index().round(2)


def share_table(*datasets: xr.Dataset) -> pd.DataFrame:
    """Return the communication fraction of an iteration in percent at the most GPUs.

    A row per model and micro batch, a column per source.
    """
    columns = {}
    for results in datasets:
        if has_runs(results):
            share = 100 * communication_fraction(results).isel(gpus=-1, protocol=0, drop=True)
            for source in share["source"].values:
                columns[str(source)] = share.sel(source=source, drop=True).to_series()
    return pd.DataFrame(columns).round(1)
