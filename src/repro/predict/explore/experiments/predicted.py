"""Experiments predicted at full scale, in the schema of the measured ones.

Intervals come from draws of uncertain parameters (`repro.predict.calibration.interval`).
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import xarray as xr

from repro.catalog.models.trainable import trainable
from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.catalog.studies.selection import Selection
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import Protocol, protocol
from repro.predict.calibration.interval import draw_parameters, without_columns
from repro.predict.explore.experiments.configurations import predict_plans
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.workload import Plan

_RATES = ("node", "resample")
_TIMES = ("rank", "timer", "resample")
# Axes of each quantity of one configuration, its name in words and its unit.
_QUANTITIES = {
    "iteration_time_s": (("rank", "resample"), "iteration time", "s"),
    "phase_time_s": (("rank", "phase", "resample"), "time in phase", "s"),
    "rx_iteration_full_scale_gbps": (_RATES, "mean rate received by the NICs", "Gbit/s"),
    "tx_iteration_full_scale_gbps": (_RATES, "mean rate sent by the NICs", "Gbit/s"),
    "memory_bytes": (("resample",), "memory of the fullest GPU", "B"),
}
_PIPELINE_QUANTITIES = {
    "p2p_time_s": (_TIMES, "time in Megatron's timer", "s"),
    "p2p_wire_s": (_TIMES, "of that, time in which a message was under way", "s"),
    "p2p_bytes_sent": (("rank", "resample"), "messages to neighbouring stages", "B"),
}
# Variables that are known even of configurations that do not run.
_WITHOUT_A_RUN = ("memory_bytes", "out_of_memory", "time_scale")


def predict_experiment(selection: Selection) -> xr.Dataset:
    """Predict every configuration of a selection.

    Returns
    -------
    Dataset
        The variables of `repro.results.schema` that metrics are computed from, with the dimensions
        (source, model, protocol, gpus), one named as what the experiment sweeps, and one iteration.
        Data parallelism has one rank and one node, which represent all; pipelines have all ranks,
        and Megatron's timers of messages. `time_scale` is 1: times and rates are full-scale ones.
        NaN marks ranks and nodes that a run does not have, and configurations that do not divide
        or, if an experiment continues until memory is full, do not fit.

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
    """Predict the same with a dimension `resample` of draws of the parameters, for intervals."""
    entry = cluster(selection.experiment.cluster)
    return _predict(selection, draw_parameters(calibration(entry.calibration), entry))


def _predict(selection: Selection, parameters: Parameters) -> xr.Dataset:
    """Predict with the selection's protocols, or the fabric's rate if the cluster has none."""
    known = cluster(selection.experiment.cluster).protocols
    protocols = {name: protocol(name) if name in known else None for name in selection.protocols}
    return predict_with(selection, protocols, parameters).expand_dims(source=["predicted"])


def predict_with(
    selection: Selection, protocols: Mapping[str, Protocol | None], parameters: Parameters
) -> xr.Dataset:
    """Predict with other protocols and parameters.

    Parameters
    ----------
    protocols
        Protocols by name, instead of the selection's; None is the rate of the cluster's fabric.
    parameters
        Columns of values become the dimension `resample`.
    """
    chosen = selection.experiment
    entry = cluster(chosen.cluster)
    if chosen.pipeline:
        parameters = without_columns(parameters)
    machines = {name: machine(entry, parameters, one) for name, one in protocols.items()}
    result = _dataset(selection, machines, parameters)
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


def _dataset(
    selection: Selection, machines: Mapping[str, Machine], parameters: Parameters
) -> xr.Dataset:
    """Fill every quantity of every configuration into one array each."""
    chosen, labels = selection.experiment, _labels(selection, list(machines))
    where = ("model", "protocol", "gpus", chosen.sweep or "swept")
    sizes = {"rank": 1, "node": 1, "swept": 1, **{dim: len(of) for dim, of in labels.items()}}
    sizes["resample"] = max(np.size(value) for _, value in parameters)
    known = _QUANTITIES | (_PIPELINE_QUANTITIES if chosen.pipeline else {})
    arrays = {
        name: np.full([sizes[dim] for dim in (*where, *axes)], np.nan)
        for name, (axes, _, _) in known.items()
    }
    for (i, name), (j, one) in product(enumerate(selection.models), enumerate(machines.values())):
        plans = _plans(selection, name)
        predicted = predict_plans(
            trainable(name), list(plans.values()), one, parameters, pipeline=chosen.pipeline
        )
        for (k, value), found in zip(plans, predicted, strict=True):
            for variable, values in found.items():
                axes, part = known[variable][0], arrays[variable][i, j, k, value]
                # Runs on fewer GPUs than the largest have fewer ranks and nodes.
                part = part[: len(values)] if axes[0] in ("rank", "node") else part
                part[...] = values if values.ndim == len(axes) else values[..., None]
    result = xr.Dataset(
        {
            name: ((*where, *axes), arrays[name], {"long_name": long_name, "units": units})
            for name, (axes, long_name, units) in known.items()
        },
        coords=labels,
    )
    iterations = result.drop_vars("memory_bytes").expand_dims("iteration")
    result = iterations.assign(memory_bytes=result["memory_bytes"], time_scale=1.0)
    return result.transpose(*where, "iteration", ...)


def _labels(selection: Selection, protocols: Sequence[str]) -> dict[str, list[object]]:
    """Return the labels of all dimensions that have some."""
    chosen = selection.experiment
    labels: dict[str, Sequence[object]] = {
        "model": selection.models,
        "protocol": protocols,
        "gpus": selection.gpus,
        "phase": PHASES,
    }
    if chosen.sweep:
        labels[chosen.sweep] = selection.profile.values
    if chosen.pipeline:
        ranks = max(selection.gpus)
        nodes = -(-ranks // cluster(chosen.cluster).topology.gpus_per_node)
        labels |= {"timer": P2P_TIMERS, "rank": range(ranks), "node": range(nodes)}
    return {dim: list(values) for dim, values in labels.items()}


def _plans(selection: Selection, model: str) -> dict[tuple[int, int], Plan]:
    """Return the plans of a model whose batch divides, by positions of GPUs and swept value."""
    chosen, values = selection.experiment, selection.profile.values or (None,)
    found = {}
    for k, gpus in enumerate(selection.gpus):
        stages = chosen.stages(gpus)
        for value, batch in selection.batches(model, gpus).items():
            found[k, values.index(value)] = Plan(
                global_batch_size=batch.global_batch_size,
                micro_batch_size=batch.micro_batch_size,
                data_parallel=gpus // stages,
                pipeline_parallel=stages,
                distributed_optimizer=chosen.distributed_optimizer,
            )
    return found
