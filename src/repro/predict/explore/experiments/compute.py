"""How long one GPU of a cluster computes a micro batch of a full-size model, and steps it."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.open_models import OpenModel
from repro.catalog.models.trainable import Trainable
from repro.catalog.models.volumes import training_flops
from repro.catalog.systems.clusters import Cluster
from repro.predict.calibration.interval import half_width
from repro.predict.explore.experiments.open_training import open_compute_time
from repro.predict.network.machine import machine
from repro.predict.parameters import calibration
from repro.predict.step.iteration import predict_phases
from repro.predict.workload import Plan, workload


@dataclass(frozen=True)
class ComputeTime:
    """Forward plus backward compute in seconds, its 90 % interval, and the MFU it amounts to; and
    the optimizer's step, of the whole model."""

    value_s: float
    low_s: float
    high_s: float
    mfu: float
    optimizer_s: float


def compute_time(
    model: Trainable, cluster: Cluster, micro_batch_size: int, *, pipeline: bool = False
) -> ComputeTime:
    """Predict forward and backward compute of one micro batch on one GPU, nothing recomputed, and
    the optimizer's step.

    `pipeline` chooses the shape that was trained in pipelines, where it is another. Open models
    are predicted with today's software.
    """
    if isinstance(model, OpenModel):
        value, optimizer, log_width = open_compute_time(model, cluster, micro_batch_size)
    else:
        calibrated = calibration(cluster.calibration)
        plan = Plan(global_batch_size=micro_batch_size, micro_batch_size=micro_batch_size)
        one, _ = workload(model.family, model.full_size(pipeline), plan).flat()
        device = machine(cluster, calibrated.parameters)
        phases = predict_phases(one, device, calibrated.parameters)
        value = float((phases.forward_compute + phases.backward_compute)[0])
        optimizer = float(phases.optimizer[0])
        log_width = float(half_width(one, cluster, calibrated)[0])
    width = float(np.exp(log_width))
    flops = training_flops(model.family, model.full_size(pipeline), micro_batch_size)
    return ComputeTime(
        value_s=value,
        low_s=value / width,
        high_s=value * width,
        mfu=flops / (value * cluster.device.peak_flops),
        optimizer_s=optimizer,
    )
