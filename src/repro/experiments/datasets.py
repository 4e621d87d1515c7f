"""Datasets of the pipeline by name, each measured by one function."""

from collections.abc import Callable, Mapping
from functools import partial

import xarray as xr

from repro.catalog.reading import choose
from repro.catalog.studies.collectives import read_collectives_sweep, select_sweep
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.catalog.studies.selection import select
from repro.experiments.communication import get_communication
from repro.experiments.compression import get_compression
from repro.experiments.partitions import get_partitions
from repro.experiments.sensitivity import get_sensitivity
from repro.experiments.sources import get_results

# Experiments that are predicted for more protocols than are measured.
_PROTOCOL = {"micro_batches": "rdma"}


def measured_datasets() -> Mapping[str, Callable[[str], xr.Dataset]]:
    """Return the function of each dataset of the pipeline; it takes the profile."""
    return {
        **{name: partial(_experiment, name) for name in EXPERIMENTS},
        **{
            f"collectives-{name}": partial(_collectives, name)
            for name in read_collectives_sweep().clusters
        },
        "sensitivity": _sensitivity,
        "communication": lambda profile: get_communication(profile=profile),
        "hierarchical_zero": lambda profile: get_partitions(profile=profile),
        "compression": lambda profile: get_compression(profile=profile),
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
