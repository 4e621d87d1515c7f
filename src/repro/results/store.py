"""NetCDF files of results with their provenance, each written completely or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path

import xarray as xr

from repro.atomic import cannot_be_written, replacing
from repro.catalog.reading import choose
from repro.catalog.studies.collectives import read_collectives_sweep
from repro.catalog.studies.experiments import EXPERIMENTS, SWEPT
from repro.errors import ReproError, one_line
from repro.paths import RESULTS

# Variable that a result of an earlier version lacks.
_NEWEST = {"operators": "call_part", "decoding": "flops"}


# Names of variables in datasets of earlier versions, readable for one more release.
_RENAMED = {
    "ended_precise": "reached_target_precision",
    "lacked_share": "contention_fraction",
    "needed_bytes": "min_inter_node_bytes",
    "pace_late": "throttle_overrun",
    "slower": "slowdown_factor",
}


def write_dataset(dataset: xr.Dataset, path: Path) -> None:
    """Write a dataset as compressed netCDF4, replacing the file at once when it is complete.

    Raises
    ------
    ReproError
        The folder cannot be written or the disk is full.
    """
    encoding = {
        name: {"zlib": True, "complevel": 4}
        for name, variable in dataset.data_vars.items()
        if variable.dtype.kind in "fiu"
    }
    try:
        with replacing(path) as temporary:
            dataset.to_netcdf(temporary, engine="netcdf4", encoding=encoding)
    except (OSError, RuntimeError) as error:
        # The netCDF library has its own errors.
        raise cannot_be_written(path, error) from None


def read_dataset(path: Path) -> xr.Dataset:
    """Read a whole dataset.

    Raises
    ------
    ReproError
        The file is missing or no netCDF file.
    """
    try:
        # The file's encoding would truncate longer names when the dataset is merged and rewritten.
        dataset = xr.load_dataset(path, engine="netcdf4").drop_encoding()
    except FileNotFoundError:
        raise ReproError(f"{path}: no such result; `dvc repro` produces it") from None
    except (OSError, RuntimeError, ValueError) as error:
        # The libraries below raise all of these on damaged files.
        raise ReproError(
            f"{path}: not a readable netCDF file ({one_line(error)}); fix: delete it and run again"
        ) from None
    return dataset.rename({old: new for old, new in _RENAMED.items() if old in dataset})


def not_run(reasons: Mapping[str, str], **attributes: str) -> xr.Dataset:
    """Return a dataset without variables; attribute `not_run` is a JSON object with the reasons."""
    return xr.Dataset(attrs={**attributes, "not_run": json.dumps(reasons)})


def has_runs(dataset: xr.Dataset) -> bool:
    """Test whether anything of an experiment was run."""
    return "iteration_time_s" in dataset


def is_sweep(dataset: xr.Dataset) -> bool:
    """Test whether an experiment varies a batch size in addition to the GPUs."""
    return not set(SWEPT).isdisjoint(dataset.dims)


def has_pipelines(dataset: xr.Dataset) -> bool:
    """Test whether models were split into pipeline stages, which send each other messages."""
    return "p2p_time_s" in dataset


def why_not_run(dataset: xr.Dataset) -> str:
    """Return in one line what was not run and why; empty if everything was run."""
    reasons = json.loads(dataset.attrs.get("not_run", "{}"))
    return "; ".join(f"{what}: {why}" for what, why in reasons.items())


def read_experiments() -> dict[str, xr.Dataset]:
    """Read every experiment's dataset in `results/`, by name; a missing one has the reason."""
    return {name: read_result(name) for name in EXPERIMENTS}


def read_result(name: str) -> xr.Dataset:
    """Read a dataset of `results/` by its name; a missing or outdated one has the reason."""
    path = RESULTS / f"{name}.nc"
    if not path.exists():
        return not_run({"results": "none yet; fix: dvc repro"})
    dataset = read_dataset(path)
    newest = _NEWEST.get(name, "requests")
    if dataset.data_vars and newest not in {*dataset, *dataset.attrs}:
        return not_run({name: "measured by an earlier version; fix: dvc repro"})
    return dataset


def read_sweeps() -> dict[str, xr.Dataset]:
    """Read the collectives of every cluster in `results/`, by file name, or the reason."""
    names = [f"collectives-{cluster}" for cluster in read_collectives_sweep().clusters]
    return {name: read_result(name) for name in names}


def read_measured(names: str) -> tuple[dict[str, xr.Dataset], str]:
    """Read the measured experiments among a comma-separated list of names.

    Returns
    -------
    measured, missing
        Datasets by name, and in one line the reasons why others are missing.

    Raises
    ------
    ReproError
        A name is unknown.
    """
    known = read_experiments()
    chosen = {
        name: choose("experiment", name, known)
        for name in (part.strip() for part in names.split(","))
    }
    measured = {name: dataset for name, dataset in chosen.items() if has_runs(dataset)}
    missing = [
        f"{name}: nothing was measured ({why_not_run(dataset)})"
        for name, dataset in chosen.items()
        if name not in measured
    ]
    return measured, "; ".join(missing)
