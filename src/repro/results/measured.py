"""Measurements that stay in git, beside the published ones: small datasets with provenance."""

import json
from pathlib import Path

import xarray as xr

from repro.errors import ReproError
from repro.paths import ROOT
from repro.results.merging import merge
from repro.results.store import has_runs, not_run, read_dataset, why_not_run, write_dataset

MEASURED = ROOT / "data" / "measured"
# What a GPU by itself is measured for; series of counters are large, and say nothing of it.
_KEPT = (
    "iteration_time_s",
    "phase_time_s",
    "peak_memory_bytes",
    "out_of_memory",
    "time_scale",
    "parameters",
)
_SOURCE = "cluster"
# Of what a configuration ran on.
_NOT_KEPT = ("configuration", "hosts", "adapters")


def keep_measured(results: xr.Dataset, name: str, folder: Path = MEASURED) -> Path:
    """Write what was measured of one GPU into a file for git.

    Models that the file has already stay, unless they were measured anew: a long sweep can be made
    model by model.

    Parameters
    ----------
    results : Dataset
        By the schema of `repro.results.schema`.
    name : str
        Of the file, without its ending.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ReproError
        Nothing was measured on a real node, or the file cannot be written.
    """
    if not has_runs(results):
        raise ReproError(f"{name}: nothing was measured to keep ({why_not_run(results)})")
    sources = results["source"].values.tolist()
    if sources != [_SOURCE]:
        raise ReproError(f"{name}: source {', '.join(sources)} is not kept, only {_SOURCE} is")
    parts = [results[[variable for variable in _KEPT if variable in results]]]
    ran_on = json.loads(results.attrs.get("ran_on", "[]"))
    path = folder / f"{name}.nc"
    if path.exists():
        before = read_dataset(path)
        stay = [model for model in before["model"].values if model not in results["model"]]
        if stay:
            parts.insert(0, before.sel(model=stay))
            ran_on = [*json.loads(before.attrs["ran_on"]), *ran_on]
    joined = merge(parts)
    # One entry for each device and software, however many configurations ran on it; what the
    # machines are called is their owners' business.
    machines = {
        json.dumps({key: value for key, value in one.items() if key not in _NOT_KEPT}): None
        for one in ran_on
    }
    joined.attrs["ran_on"] = json.dumps([json.loads(one) for one in machines])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_dataset(joined, path)
    return path


def read_kept(name: str, folder: Path = MEASURED) -> xr.Dataset:
    """What `keep_measured` wrote; without variables, and with the reason, if it never did."""
    path = folder / f"{name}.nc"
    if path.exists():
        return read_dataset(path)
    return not_run({name: f"nothing is measured yet, there is no data/measured/{path.name}"})
