"""Reference run: means of one machine's run, small enough for git, with their provenance."""

import json
from pathlib import Path

import xarray as xr

from repro.atomic import replacing
from repro.paths import HOME, find
from repro.results.cells import cells
from repro.results.store import not_run, read_dataset

_FOLDER = "data/reference"
REFERENCE = find(_FOLDER)
# A new reference run goes here.
OWN_REFERENCE = HOME / _FOLDER
SOURCE = "testbed"
# Variables for figures and quantities; series in time, messages and samples are left out.
_KEPT = (
    "iteration_time_s",
    "phase_time_s",
    "rx_iteration_full_scale_gbps",
    "tx_iteration_full_scale_gbps",
    "p2p_time_s",
    "p2p_wire_s",
    "out_of_memory",
    "time_scale",
    "parameters",
)
_DESCRIBED = ("title", "published_in", "experiment", "profile", "provenance", "not_run")


def keep_reference(name: str, results: xr.Dataset, folder: Path = OWN_REFERENCE) -> Path:
    """Write an experiment's means over iterations, and its values with intervals, for git.

    Parameters
    ----------
    results : Dataset
        Results by the schema of `repro.results.schema`, with source `testbed`.
    """
    measured = results.sel(source=[SOURCE])
    kept = measured[[variable for variable in _KEPT if variable in measured]]
    means = kept.map(
        lambda values: (
            values.mean("iteration", keepdims=True) if "iteration" in values.dims else values
        ),
        keep_attrs=True,
    )
    summary = means.astype("float32").assign(cells=cells(measured))
    summary.attrs = {key: results.attrs[key] for key in _DESCRIBED if key in results.attrs}
    path = folder / f"{name}.nc"
    # Compression would enlarge files with variables as small as these.
    with replacing(path) as temporary:
        summary.to_netcdf(temporary, engine="netcdf4")
    return path


def read_reference(name: str, folder: Path = REFERENCE) -> xr.Dataset:
    """Read the dataset of `keep_reference`; attribute `reference` describes its run.

    If no reference run is kept, there are no variables, and the attribute `not_run` has the reason.
    """
    path = folder / f"{name}.nc"
    if not path.exists():
        return not_run({"reference": NONE_KEPT}, experiment=name)
    dataset = read_dataset(path)
    described = describe_run(dataset)
    title = f"{dataset.attrs['title']}, reference run"
    return dataset.assign_attrs(title=title, reference=described)


NONE_KEPT = "no reference run is kept in data/reference; `repro reference` keeps the one in results"


def describe_run(dataset: xr.Dataset) -> str:
    """Describe in one line the date, profile and machine of a dataset's measurement."""
    first, *_ = json.loads(dataset.attrs["provenance"])
    machine = first["machine"]
    return (
        f"{first['time'][:10]}, profile {dataset.attrs.get('profile', 'unknown')}, "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"commit {first['commit'][:9]}"
    )
