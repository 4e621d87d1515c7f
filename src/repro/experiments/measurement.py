"""Measurement: requests of an experiment or study, run or loaded from the store, as one dataset."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from repro.catalog.systems.nodes import Nodes
from repro.errors import NotRunHere
from repro.launch.execution import run_on_pool
from repro.launch.nodes.run import run_on_nodes
from repro.launch.request import PoolSpec, Request, plain
from repro.launch.store import Store, key
from repro.paths import RESULTS
from repro.results.merging import merge
from repro.results.store import read_dataset, write_dataset


@dataclass(frozen=True)
class Measurement:
    """Requests for one set of ranks, and the attributes of their dataset.

    Attributes
    ----------
    name
        Name of the dataset in `results/`.
    target
        Ranks on this machine, or real nodes.
    requests
        Requests that the ranks run, in this order.
    attributes
        Attributes of the dataset.
    parameters
        Parameters from which the requests follow.
    missing
        Configurations that cannot be requested here, with the reason.
    """

    name: str
    target: PoolSpec | Nodes
    requests: tuple[Request[Any], ...]
    attributes: Mapping[str, object]
    parameters: Mapping[str, object]
    missing: Mapping[str, str] = field(default_factory=dict)


def results_store() -> Store:
    """Return the store of this project's results."""
    return Store(RESULTS / "store")


def dataset_path(name: str) -> Path:
    """Return the path of a dataset of the pipeline."""
    return RESULTS / f"{name}.nc"


def measure(measurement: Measurement) -> xr.Dataset:
    """Return the dataset of a measurement; what the store lacks runs now.

    Returns
    -------
    Dataset
        By the schema of `repro.results.schema`, or of `repro.results.collectives`. Its attributes
        `requests` (with their keys in the store) and `parameters` are JSON; `not_run` is a JSON
        object from what could not run here to the reason.

    Raises
    ------
    ReproError
        A run failed.

    Examples
    --------
    >>> nothing = Measurement("none", PoolSpec(None, 1, None), (), {"title": "Nothing"}, {})
    >>> measure(nothing).title
    'Nothing'
    """
    keys = [key(request) for request in measurement.requests]
    if (kept := _kept(measurement.name, keys)) is not None:
        return kept
    datasets, not_run = _run(measurement) if measurement.requests else ([], {})
    requests = [
        {"key": key_, **request.inputs()}
        for key_, request in zip(keys, measurement.requests, strict=True)
    ]
    return (merge(datasets) if datasets else xr.Dataset()).assign_attrs(
        **measurement.attributes,
        not_run=json.dumps({**measurement.missing, **not_run}),
        requests=json.dumps(requests),
        parameters=json.dumps(plain(measurement.parameters)),
    )


def save(dataset: xr.Dataset, output: str) -> xr.Dataset:
    """Write a dataset to a path relative to the project, unless it is empty; return it."""
    if output:
        write_dataset(dataset, RESULTS.parent / output)
    return dataset


def _kept(name: str, keys: list[str]) -> xr.Dataset | None:
    """Return the pipeline's dataset of a name if it has exactly these results."""
    path = dataset_path(name)
    if not keys or not path.exists():
        return None
    kept = read_dataset(path)
    found = [request.get("key") for request in json.loads(kept.attrs.get("requests", "[]"))]
    return kept if kept.data_vars and found == keys else None


def _run(measurement: Measurement) -> tuple[list[xr.Dataset], dict[str, str]]:
    requests, target, name = measurement.requests, measurement.target, measurement.name
    try:
        if isinstance(target, PoolSpec):
            return run_on_pool(requests, target, results_store(), name), {}
        return run_on_nodes(requests, target, results_store(), RESULTS / "logs" / name, name)
    except NotRunHere as reason:
        source = "testbed" if isinstance(target, PoolSpec) else "cluster"
        return [], {source: str(reason)}
