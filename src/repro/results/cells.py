"""Means of every configuration that was measured, with their intervals."""

import pandas as pd
import xarray as xr

from repro.observe.precision import CONFIDENCE
from repro.results.metrics import (
    Statistic,
    communication_fraction,
    draw_sample,
    iteration_time_s,
    timer_fraction,
    utilisation_gbps,
)
from repro.results.store import has_pipelines

KEYS = ("model", "protocol", "gpus", "global_batch_size", "micro_batch_size")
BOUNDS = ("value", "low", "high")


def cells(results: xr.Dataset) -> xr.DataArray:
    """Return iteration time, communication fraction and utilisation of each configuration.

    Parameters
    ----------
    results : Dataset
        Results of one source, by the schema of `repro.results.schema`.

    Returns
    -------
    DataArray
        Dimensions `quantity`, `bound` (value, low and high end of the 95 % bootstrap interval) and
        those of the configurations; NaN where nothing was run.
    """
    sample = draw_sample(results)
    tail = (1 - CONFIDENCE) / 2
    found = []
    for statistic in _quantities(results).values():
        ends = statistic(sample.resamples).quantile([tail, 1 - tail], "resample", skipna=False)
        parts = [statistic(results), *(ends.isel(quantile=end, drop=True) for end in (0, 1))]
        found.append(xr.concat(parts, dim="bound", coords="minimal", join="outer"))
    together = xr.concat(found, dim="quantity", coords="minimal", join="outer")
    return together.assign_coords(quantity=list(_quantities(results)), bound=list(BOUNDS))


def cell_table(values: xr.DataArray) -> pd.DataFrame:
    """Return a row per quantity and configuration that was run, a column per bound."""
    rows = values.squeeze("source", drop=True).rename("cell").to_dataframe()["cell"]
    index = ["quantity", *(key for key in KEYS if key in values.dims)]
    return rows.unstack("bound").dropna().reorder_levels(index)[list(BOUNDS)]


def _quantities(results: xr.Dataset) -> dict[str, Statistic]:
    share = timer_fraction if has_pipelines(results) else communication_fraction
    return {
        "iteration time, s": iteration_time_s,
        "share of communication": share,
        "utilisation, Gbit/s": utilisation_gbps,
    }
