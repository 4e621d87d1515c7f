"""Scaling experiments predicted at full scale, in the schema of the measured ones.

Intervals come from draws of the model's uncertain parameters (`repro.predict.draws`).
"""

from collections.abc import Mapping, Sequence

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
from repro.predict.workload import Plan, workload

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
    by_model = []
    for name in models:
        by_protocol = [
            _configurations(experiment, entry, model(name), one, gpus, parameters)
            for one in protocols.values()
        ]
        by_model.append(xr.concat(by_protocol, xr.DataArray(list(protocols), dims="protocol")))
    joined = xr.concat(by_model, xr.DataArray(list(models), dims="model"))
    named = joined.assign_coords(protocol=list(protocols), model=list(models))
    result = named.assign(time_scale=1.0)
    return result if result.sizes["resample"] > 1 else result.isel(resample=0)


def _configurations(
    experiment: Experiment,
    entry: Cluster,
    studied: Model,
    transport: Protocol,
    gpus: Sequence[int],
    parameters: Parameters,
) -> xr.Dataset:
    micro_batch = np.array([experiment.micro_batch(count) for count in gpus])
    plan = Plan(
        global_batch_size=micro_batch * np.array(gpus),
        micro_batch_size=micro_batch,
        data_parallel=np.array(gpus),
    )
    rows, _ = workload(studied.family, studied.full, plan).flat()
    predicted = {
        name: np.atleast_2d(values)
        for name, values in quantities(
            rows, machine(entry, parameters, transport), parameters
        ).items()
    }
    time = predicted["iteration_time_s"]
    phases = [
        np.broadcast_to(sum(predicted[p] for p in parts), time.shape) for parts in _TIMERS.values()
    ]
    # A ring sends as much as it receives.
    rate = (("node", "iteration", "resample", "gpus"), predicted["fabric_gbps"][None, None])
    each = ("iteration", "rank", "resample", "gpus")
    return xr.Dataset(
        {
            "iteration_time_s": (each, time[None, None], {"units": "s"}),
            "phase_time_s": (("phase", *each), np.array(phases)[:, None, None], {"units": "s"}),
            "rx_iteration_full_scale_gbps": (*rate, {"units": "Gbit/s"}),
            "tx_iteration_full_scale_gbps": (*rate, {"units": "Gbit/s"}),
        },
        coords={"phase": list(_TIMERS), "gpus": list(gpus)},
    )
