"""Measurements of GPUs in git: small datasets with provenance.

Each GPU has a folder, by its name in `params/gpus.yaml`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import find_gpu_name, read_gpus
from repro.errors import ReproError
from repro.paths import HOME, find
from repro.results.merging import merge
from repro.results.store import has_runs, not_run, read_dataset, why_not_run, write_dataset

_FOLDER = "data/measured"
# New measurements go here.
MEASURED = HOME / _FOLDER
# Variables that describe a GPU by itself; series of counters are large and do not.
_KEPT = (
    "iteration_time_s",
    "phase_time_s",
    "peak_memory_bytes",
    "out_of_memory",
    "time_scale",
    "parameters",
)
_SOURCE = "cluster"
NO_GPU = "nothing is measured of any GPU yet: there is nothing in data/measured/"
# Entries of the attribute `ran_on` that are left out.
_NOT_KEPT = ("configuration", "hosts", "adapters")


def keep_measured(results: xr.Dataset, name: str, folder: Path = MEASURED) -> Path:
    """Write the measurements of one GPU into a file for git, in the GPU's folder.

    Models that the file already has stay, unless they were measured again: a long sweep can be
    measured model by model.

    Parameters
    ----------
    results : Dataset
        Results by the schema of `repro.results.schema`.
    name : str
        Name of the file, without its ending.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ReproError
        Nothing was measured on a real node, `params/gpus.yaml` lacks the GPU, or the file cannot be
        written.
    """
    if not has_runs(results):
        raise ReproError(f"{name}: nothing was measured to keep ({why_not_run(results)})")
    sources = results["source"].values.tolist()
    if sources != [_SOURCE]:
        raise ReproError(f"{name}: source {', '.join(sources)} is not kept, only {_SOURCE} is")
    parts = [results[[variable for variable in _KEPT if variable in results]]]
    ran_on = json.loads(results.attrs.get("ran_on", "[]"))
    path = folder / measured_on(results) / f"{name}.nc"
    if path.exists():
        before = read_dataset(path)
        stay = [model for model in before["model"].values if model not in results["model"]]
        if stay:
            parts.insert(0, before.sel(model=stay))
            ran_on = [*json.loads(before.attrs["ran_on"]), *ran_on]
    joined = merge(parts)
    # One entry per device and software, whatever the number of configurations. Names of machines
    # are private.
    machines = {
        json.dumps({key: value for key, value in one.items() if key not in _NOT_KEPT}): None
        for one in ran_on
    }
    joined.attrs["ran_on"] = json.dumps([json.loads(one) for one in machines])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dataset(joined, path)
    return path


def measured_on(results: xr.Dataset) -> str:
    """Return the GPU of a measurement, by its name in `params/gpus.yaml`.

    Raises
    ------
    ReproError
        The file lacks that GPU.
    """
    (device,) = {one["device"] for one in json.loads(results.attrs["ran_on"])}
    return find_gpu_name(device)


def read_kept(name: str, gpu: str, folder: Path | None = None) -> xr.Dataset:
    """Read the kept measurements of one GPU; no variables, and the reason, if there are none."""
    path = _kept_path(name, gpu, folder)
    if path.exists():
        return read_dataset(path)
    missing = f"data/measured/{gpu}/{path.name}"
    return not_run({name: f"nothing is measured of this GPU yet, there is no {missing}"})


def read_all_kept(name: str, folder: Path | None = None) -> dict[str, xr.Dataset]:
    """Read the kept measurements of each GPU, in the order of `params/gpus.yaml`."""
    return {
        gpu: read_dataset(path)
        for gpu in read_gpus()
        if (path := _kept_path(name, gpu, folder)).exists()
    }


def _kept_path(name: str, gpu: str, folder: Path | None) -> Path:
    """Return a file of `folder`, by default the user's own or else the package's."""
    return folder / gpu / f"{name}.nc" if folder else find(f"{_FOLDER}/{gpu}/{name}.nc")


def by_gpu(
    kept: Mapping[str, xr.Dataset], table: Callable[[xr.Dataset], pd.DataFrame]
) -> pd.DataFrame:
    """Return one table of the kept measurements of all GPUs, with the GPU in its index."""
    return pd.concat({gpu: table(one) for gpu, one in kept.items()}, names=["gpu"])
