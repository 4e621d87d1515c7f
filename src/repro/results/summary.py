"""Numbers of an experiment in one small JSON file, for `dvc metrics`."""

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import xarray as xr

from repro.atomic import replace_text
from repro.results.metrics import (
    communication_fraction,
    iteration_time_s,
    timer_fraction,
    utilisation_gbps,
    wire_share,
)
from repro.results.store import has_pipelines, has_runs, is_sweep


def write_metrics(results: Mapping[str, xr.Dataset], path: Path) -> None:
    """Write the mean over the models by experiment, quantity, protocol and number of GPUs.

    Sweeps are left out, because a mean over batches has no use.
    """
    summary = {
        name: _summary(dataset)
        for name, dataset in results.items()
        if has_runs(dataset) and not is_sweep(dataset)
    }
    replace_text(path, json.dumps(summary, indent=1) + "\n")


def _summary(dataset: xr.Dataset) -> dict[str, dict[str, dict[str, float]]]:
    shares = (
        {"timer_fraction": timer_fraction(dataset), "wire_share": wire_share(dataset)}
        if has_pipelines(dataset)
        else {"communication_fraction": communication_fraction(dataset)}
    )
    quantities = {
        "full_scale_iteration_time_s": iteration_time_s(dataset),
        **shares,
        "utilisation_full_scale_gbps": utilisation_gbps(dataset),
    }
    return {
        name: {
            str(protocol): {
                str(gpus): round(float(values.sel(protocol=protocol, gpus=gpus).mean()), 4)
                for gpus in values["gpus"].values
            }
            for protocol in values["protocol"].values
        }
        for name, values in quantities.items()
    }


def pipeline_readings(results: xr.Dataset) -> pd.DataFrame:
    """Return both definitions of pipelines' communication, in percent of an iteration.

    Returns
    -------
    DataFrame
        A row per model and protocol; columns by definition (timers, wire) and number of GPUs. Empty
        without pipelines.
    """
    if not has_pipelines(results):
        return pd.DataFrame()
    readings = {"timers": timer_fraction(results), "wire": wire_share(results)}
    tables = {
        name: (100 * share)
        .squeeze("source", drop=True)
        .rename("share")
        .to_dataframe()["share"]
        .unstack("gpus")
        .round(1)
        for name, share in readings.items()
    }
    return pd.concat(tables, axis="columns", names=["reading", "gpus"])


def similarity_table(results: xr.Dataset) -> pd.DataFrame:
    """Return the similarity rule's numbers, a row per model; empty if nothing was run."""
    explained = pd.DataFrame(json.loads(results.attrs.get("similarity", "{}"))).T
    return explained.drop(columns=["model", "rule"], errors="ignore")
