"""The numbers of an experiment in one small JSON file, for `dvc metrics`."""

import json
from collections.abc import Mapping
from pathlib import Path

import xarray as xr

from repro.atomic import replacing
from repro.results.metrics import communication_fraction, iteration_time_s, utilisation_gbps
from repro.results.store import has_runs


def write_metrics(results: Mapping[str, xr.Dataset], path: Path) -> None:
    """Write the mean over the models by experiment, quantity, protocol and number of GPUs."""
    summary = {name: _summary(dataset) for name, dataset in results.items() if has_runs(dataset)}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def _summary(dataset: xr.Dataset) -> dict[str, dict[str, dict[str, float]]]:
    quantities = {
        "full_scale_iteration_time_s": iteration_time_s(dataset),
        "communication_fraction": communication_fraction(dataset),
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
