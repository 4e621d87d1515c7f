"""Experiments predicted at full scale, in the schema of the measured ones.

Intervals come from draws of uncertain parameters (`repro.predict.calibration.interval`).
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import xarray as xr

from repro.catalog.models.open_models import OpenModel
from repro.catalog.models.trainable import trainable
from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import Protocol, protocol
from repro.predict.calibration.interval import draw_parameters, without_columns
from repro.predict.explore.experiments.configurations import (
    QUANTITIES,
    configurations,
    predict_data_parallel,
    predict_pipelines,
)
from repro.predict.explore.experiments.open_training import predict_open
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.workload import Array

# What is known of a configuration even where it does not run.
_WITHOUT_A_RUN = ("memory_bytes", "out_of_memory", "time_scale")


def predict_experiment(selection: Selection) -> xr.Dataset:
    """Predict every configuration of a selection.

    Returns
    -------
    Dataset
        The variables of `repro.results.schema` that metrics are computed from, with the dimensions
        (source, model, protocol, gpus), one named as what the experiment sweeps, and one iteration.
        Data parallelism has one rank and one node, which stand for all; pipelines have all ranks,
        and Megatron's timers of messages. `time_scale` is 1: times and rates are full-scale ones.
        NaN: ranks and nodes that a run does not have, and configurations that do not divide or,
        where an experiment goes on until memory is full, do not fit.

    Raises
    ------
    ReproError
        A name is unknown.

    Examples
    --------
    >>> from repro.catalog.studies.selection import select
    >>> one = select("weak_scaling", source="predicted", models="gpt2-medium", gpus=8)
    >>> times = predict_experiment(one).iteration_time_s.mean(["iteration", "rank"]).squeeze()
    >>> bool(times.sel(protocol="rdma") < times.sel(protocol="tcp"))
    True
    """
    entry = cluster(selection.experiment.cluster)
    return _predict(selection, calibration(entry.calibration).parameters)


def draw_experiment(selection: Selection) -> xr.Dataset:
    """The same with a dimension `resample`: predictions with parameters drawn from their
    distribution, to take intervals of any quantity from."""
    entry = cluster(selection.experiment.cluster)
    return _predict(selection, draw_parameters(calibration(entry.calibration), entry))


def _predict(selection: Selection, parameters: Parameters) -> xr.Dataset:
    """With the selection's protocols; where a cluster has none, with its fabric's rate."""
    known = cluster(selection.experiment.cluster).protocols
    protocols = {name: protocol(name) if name in known else None for name in selection.protocols}
    return predict_with(selection, protocols, parameters).expand_dims(source=["predicted"])


def predict_with(
    selection: Selection, protocols: Mapping[str, Protocol | None], parameters: Parameters
) -> xr.Dataset:
    """Predict with protocols and parameters of one's own.

    Parameters
    ----------
    protocols
        By name, instead of the selection's; None stands for the rate of the cluster's fabric.
    parameters
        Columns of values become the dimension `resample`.
    """
    chosen = selection.experiment
    entry = cluster(chosen.cluster)
    if chosen.pipeline:
        parameters = without_columns(parameters)
    machines = {name: machine(entry, parameters, one) for name, one in protocols.items()}
    result = _dataset(selection, list(machines), _fill(selection, machines, parameters))
    memory = result["memory_bytes"]
    full = (memory > entry.device.memory_bytes).astype(float).where(memory.notnull())
    about = {"long_name": "whether a GPU's memory is not enough", "units": "1"}
    result["out_of_memory"] = full.assign_attrs(about)
    if chosen.until_out_of_memory:
        runs = result.drop_vars(_WITHOUT_A_RUN)
        result = result.assign(runs.where(result["out_of_memory"] == 0).data_vars)
    if chosen.sweep is None:
        result = result.isel(swept=0)
    return result if result.sizes["resample"] > 1 else result.isel(resample=0)


def _fill(
    selection: Selection, machines: Mapping[str, Machine], parameters: Parameters
) -> dict[str, Array]:
    """Every quantity with the axes model, protocol, gpus, value and its own."""
    chosen = selection.experiment
    values = selection.profile.values or (None,)
    sizes = {
        **_ranks_and_nodes(selection),
        "phase": len(PHASES),
        "timer": len(P2P_TIMERS),
        "resample": max(np.size(value) for _, value in parameters),
    }
    where = (len(selection.models), len(machines), len(selection.gpus), len(values))
    arrays = {
        name: np.full((*where, *(sizes[dim] for dim in quantity.dims)), np.nan)
        for name, quantity in QUANTITIES.items()
        if chosen.pipeline or not quantity.pipelines_only
    }
    predict = predict_pipelines if chosen.pipeline else predict_data_parallel
    for (i, name), (j, one) in product(enumerate(selection.models), enumerate(machines.values())):
        asked = configurations(selection, name)
        studied = trainable(name)
        predicted = (
            predict_open(studied, asked, one, parameters)
            if isinstance(studied, OpenModel)
            else predict(studied, asked, one, parameters)
        )
        for configuration, found in predicted:
            k = selection.gpus.index(configuration.gpus)
            place = (i, j, k, values.index(configuration.value))
            for variable, array in arrays.items():
                part = array[place]
                if QUANTITIES[variable].dims[0] in ("rank", "node"):
                    # Runs on fewer GPUs than the largest have fewer of them.
                    part = part[: len(found[variable])]
                part[...] = found[variable]
    return arrays


def _ranks_and_nodes(selection: Selection) -> dict[str, int]:
    """How many a dataset has: those of the largest run, or one that stands for all."""
    chosen = selection.experiment
    if not chosen.pipeline:
        return {"rank": 1, "node": 1}
    ranks = max(selection.gpus)
    return {"rank": ranks, "node": -(-ranks // cluster(chosen.cluster).topology.gpus_per_node)}


def _dataset(
    selection: Selection, protocols: Sequence[str], arrays: Mapping[str, Array]
) -> xr.Dataset:
    chosen = selection.experiment
    where = ("model", "protocol", "gpus", chosen.sweep or "swept")
    coordinates: dict[str, Sequence[str] | Sequence[int]] = {
        "model": selection.models,
        "protocol": protocols,
        "gpus": selection.gpus,
        "phase": PHASES,
    }
    if chosen.sweep:
        coordinates[chosen.sweep] = selection.profile.values
    if chosen.pipeline:
        coordinates["timer"] = P2P_TIMERS
        coordinates |= {dim: range(size) for dim, size in _ranks_and_nodes(selection).items()}
    variables = {}
    for name, values in arrays.items():
        quantity = QUANTITIES[name]
        about = {"long_name": quantity.long_name, "units": quantity.units}
        variable = xr.Variable((*where, *quantity.dims), values, about)
        once = name == "memory_bytes"
        variables[name] = variable if once else variable.expand_dims("iteration")
    return xr.Dataset(
        variables | {"time_scale": xr.Variable((), 1.0)},
        coords={dim: list(values) for dim, values in coordinates.items()},
    ).transpose(*where, "iteration", ...)
