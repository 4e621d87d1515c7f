"""Scaling experiments predicted at full scale, in the schema of the measured ones.

Intervals come from draws of the model's uncertain parameters (`repro.predict.draws`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from repro.catalog.clusters import Cluster, cluster
from repro.catalog.experiments import Experiment
from repro.catalog.models import Model, model
from repro.catalog.protocols import Protocol, protocol
from repro.predict.draws import draw_parameters
from repro.predict.machine import machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.quantities import quantities
from repro.predict.workload import Array, Plan, workload

# The phases that an experiment's timers tell apart, and what of the model belongs to each.
_TIMERS = {
    "forward compute": ("forward_compute",),
    "backward compute": ("backward_compute", "recompute"),
    "straggler wait": ("straggler_wait",),
    "gradient sync": ("gradient_sync",),
    "optimizer": ("optimizer",),
    "other": ("other",),
}


def predict_scaling(
    experiment: Experiment,
    models: Sequence[str],
    protocols: Sequence[str],
    gpus: Sequence[int],
) -> xr.Dataset:
    """Predict data-parallel training for every configuration of an experiment.

    Returns
    -------
    Dataset
        The variables of `repro.results.schema` that metrics are computed from, with the dimensions
        (source, model, protocol, gpus) and one iteration, rank and node. `time_scale` is 1: times
        and rates are full-scale ones.

    Raises
    ------
    ReproError
        A name is unknown.
    """
    fitted = calibration(cluster(experiment.cluster).calibration).parameters
    known = {name: protocol(name) for name in protocols}
    return predict_with(experiment, models, known, gpus, fitted).expand_dims(source=["predicted"])


def draw_scaling(
    experiment: Experiment,
    models: Sequence[str],
    protocols: Sequence[str],
    gpus: Sequence[int],
) -> xr.Dataset:
    """The same with a dimension `resample`: predictions with parameters drawn from their
    distribution, to take intervals of any quantity from."""
    entry = cluster(experiment.cluster)
    drawn = draw_parameters(calibration(entry.calibration), entry)
    known = {name: protocol(name) for name in protocols}
    return predict_with(experiment, models, known, gpus, drawn).expand_dims(source=["predicted"])


def predict_with(
    experiment: Experiment,
    models: Sequence[str],
    protocols: Mapping[str, Protocol],
    gpus: Sequence[int],
    parameters: Parameters,
) -> xr.Dataset:
    """Predict with protocols and parameters of one's own; columns of parameters become the
    dimension `resample`."""
    entry = cluster(experiment.cluster)
    by_model = [
        [
            _configurations(experiment, entry, model(name), one, gpus, parameters)
            for one in protocols.values()
        ]
        for name in models
    ]
    each = ("model", "protocol", "iteration", "rank", "resample", "gpus")
    of_nics = ("model", "protocol", "node", "iteration", "resample", "gpus")
    time = np.array([[one.time_s for one in row] for row in by_model])[:, :, None, None]
    phases = np.array([[one.phases_s for one in row] for row in by_model])[:, :, None, None]
    # A ring sends as much as it receives.
    rate = np.array([[one.fabric_gbps for one in row] for row in by_model])[:, :, None, None]
    result = xr.Dataset(
        {
            "iteration_time_s": (each, time, {"units": "s"}),
            "phase_time_s": ((*each[:4], "phase", *each[4:]), phases, {"units": "s"}),
            "rx_iteration_full_scale_gbps": (of_nics, rate, {"units": "Gbit/s"}),
            "tx_iteration_full_scale_gbps": (of_nics, rate, {"units": "Gbit/s"}),
            "time_scale": 1.0,
        },
        coords={
            "model": list(models),
            "protocol": list(protocols),
            "phase": list(_TIMERS),
            "gpus": list(gpus),
        },
    )
    return result if result.sizes["resample"] > 1 else result.isel(resample=0)


@dataclass(frozen=True)
class _Configurations:
    """Predictions of one model over one protocol: iteration time and rate (resample, gpus), phases
    (phase, resample, gpus)."""

    time_s: Array
    phases_s: Array
    fabric_gbps: Array


def _configurations(
    experiment: Experiment,
    entry: Cluster,
    studied: Model,
    transport: Protocol,
    gpus: Sequence[int],
    parameters: Parameters,
) -> _Configurations:
    micro_batch = np.array([experiment.micro_batch(count) for count in gpus])
    plan = Plan(
        global_batch_size=micro_batch * np.array(gpus),
        micro_batch_size=micro_batch,
        data_parallel=np.array(gpus),
    )
    rows, _ = workload(studied.family, studied.full, plan).flat()
    predicted = quantities(rows, machine(entry, parameters, transport), parameters)
    time = np.atleast_2d(predicted["iteration_time_s"])
    phases = [sum(predicted[part] for part in parts) for parts in _TIMERS.values()]
    return _Configurations(
        time_s=time,
        phases_s=np.array([np.broadcast_to(phase, time.shape) for phase in phases]),
        fabric_gbps=np.broadcast_to(predicted["fabric_gbps"], time.shape),
    )
