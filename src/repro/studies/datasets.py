"""Datasets of the pipeline: those of experiments and of every study's folder."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import xarray as xr

from repro.catalog.reading import choose
from repro.catalog.studies.collectives import read_collectives_sweep, select_sweep
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.catalog.studies.selection import select
from repro.experiments.sensitivity import get_sensitivity
from repro.experiments.sources import get_results
from repro.results.store import read_experiments, read_result
from repro.studies import study_modules

# Measures a dataset for a profile.
Measure = Callable[[str], xr.Dataset]
# Experiments that are predicted for more protocols than are measured.
_PROTOCOL = {"micro_batches": "rdma"}


def study_datasets() -> Mapping[str, Measure]:
    """Return the function `measure_profile` of each study, by the study's name."""
    return {
        study: import_module(module).measure_profile
        for study, module in study_modules("measurement").items()
    }


def measured_datasets() -> Mapping[str, Measure]:
    """Return the function of each dataset of the pipeline.

    Examples
    --------
    >>> "communication" in measured_datasets()
    True
    """
    return {
        **{name: partial(_experiment, name) for name in EXPERIMENTS},
        **{
            f"collectives-{name}": partial(_collectives, name)
            for name in read_collectives_sweep().clusters
        },
        **study_datasets(),
        "sensitivity": _sensitivity,
        "decoding": _decoding,
        "operators": _operators,
    }


def measure_dataset(name: str, profile: str) -> xr.Dataset:
    """Measure a dataset of the pipeline, as far as the store lacks its results.

    Raises
    ------
    ReproError
        The name is unknown, or a run failed.
    """
    return choose("dataset", name, dict(measured_datasets()))(profile)


def read_evidence() -> dict[str, xr.Dataset]:
    """Read the datasets on which claims are judged: experiments and studies."""
    return read_experiments() | {name: read_result(name) for name in study_modules("measurement")}


def _experiment(name: str, profile: str) -> xr.Dataset:
    return get_results(select(name, protocol=_PROTOCOL.get(name, "all"), profile=profile))


def _collectives(cluster: str, profile: str) -> xr.Dataset:
    return get_results(select_sweep(cluster, profile=profile))


def _sensitivity(profile: str) -> xr.Dataset:
    return get_sensitivity(select("weak_scaling", models="bert-large", gpus=8, profile=profile))


def _decoding(profile: str) -> xr.Dataset:
    from repro.experiments.machine.decoding import measure_decoding

    return measure_decoding(profile)


def _operators(profile: str) -> xr.Dataset:
    from repro.experiments.machine.operators import measure_operators

    return measure_operators(profile)
