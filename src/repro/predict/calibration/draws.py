"""Draws of the model's parameters: what calibration leaves open, and what the model gets wrong."""

from typing import Any

import numpy as np

from repro.catalog.clusters import Cluster
from repro.predict.calibration.interval import ALONE, DEVIATIONS, transfer_half_width
from repro.predict.parameters import Calibration, Parameters

_DRAWS = 300

# What computing takes its time from: the GPU, and the host.
_RATES = (
    "gemm_efficiency",
    "attention_gemm_efficiency",
    "logits_gemm_efficiency",
    "logits_gemm_efficiency_alone",
    "memory_efficiency",
)
_HOST = (
    "host_layer_s",
    "host_unfused_softmax_s",
    "host_micro_batch_s",
    "host_iteration_s",
    "host_optimizer_layer_s",
)


def draw_parameters(calibrated: Calibration, cluster: Cluster) -> Parameters:
    """Parameters with a column of values each, drawn from their distribution.

    Their covariance, and one factor on all computing by the cross-validated residuals, wider on a
    GPU that was not calibrated. Where the cluster names a measured network, one error of all
    collectives there.
    """
    generator = np.random.default_rng(0)
    centre = np.log([getattr(calibrated.parameters, name) for name in calibrated.fitted])
    drawn = np.exp(generator.multivariate_normal(centre, calibrated.covariance, size=_DRAWS))
    values = {name: drawn[:, [index]] for index, name in enumerate(calibrated.fitted)}
    half_width = np.hypot(
        calibrated.residuals[ALONE].half_width, transfer_half_width(calibrated, cluster)
    )
    factor = np.exp(half_width / DEVIATIONS * generator.standard_normal((_DRAWS, 1)))
    if cluster.network is not None:
        values["network_error"] = generator.standard_normal((_DRAWS, 1)) / DEVIATIONS
    return slower(calibrated.parameters.model_copy(update=values), factor, factor)


def without_columns(parameters: Parameters) -> Parameters:
    """Drawn parameters as plain rows of values, for a plan whose fields have no axis."""
    drawn = {name: np.ravel(value) for name, value in parameters if np.ndim(value)}
    return parameters.model_copy(update=drawn)


def slower(parameters: Parameters, gpu: Any, host: Any) -> Parameters:
    """Parameters with which the GPU takes `gpu` times as long and the host `host` times."""
    changed = {name: getattr(parameters, name) / gpu for name in _RATES}
    changed["kernel_s"] = parameters.kernel_s * gpu
    changed |= {name: getattr(parameters, name) * host for name in _HOST}
    return parameters.model_copy(update=changed)
