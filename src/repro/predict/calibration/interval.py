"""Uncertainty of predictions: half widths of intervals, and draws of parameters.

It has two causes: measurements leave parameters uncertain, and the model itself is inexact.
"""

from typing import Any

import numpy as np

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.protocols import Protocol
from repro.predict.network.machine import machine
from repro.predict.parameters import TRANSFER, Calibration, Parameters
from repro.predict.step.quantities import iteration_times_s
from repro.predict.workload import Array, Workload

LEVEL = 0.90
# The 5 % to 95 % quantiles of a normal distribution, in standard deviations.
DEVIATIONS = 1.645
_STEP = 0.01
_DRAWS = 300

# Parameters that decide how fast the GPU and the host are.
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

ALONE, TENSOR_PARALLEL = "without tensor parallelism", "with tensor parallelism"
BETWEEN_NODES = "between nodes"


def transfer_half_width(calibrated: Calibration, cluster: Cluster) -> float:
    """Return the half width that a calibration on another GPU than the cluster's adds."""
    return 0.0 if cluster.gpu == calibrated.gpu else TRANSFER


def half_width(
    w: Workload, cluster: Cluster, calibrated: Calibration, protocol: Protocol | None = None
) -> Array:
    """Return half of the 90 % interval of ln(iteration time).

    Three parts add in quadrature: the cross-validated residuals of the row's regime, the covariance
    of parameters, and the half width of a measured network. The model's differences carry the last
    two over to times.

    Returns
    -------
    Array
        x, for an interval from time / e^x to time * e^x.
    """
    parallel, alone = (calibrated.residuals[name].half_width for name in (TENSOR_PARALLEL, ALONE))
    quantile = np.where(w.tensor_parallel > 1, parallel, alone)
    if between := calibrated.residuals.get(BETWEEN_NODES):
        on_several = w.gpus > cluster.topology.gpus_per_node
        quantile = np.where(on_several, between.half_width, quantile)
    transfer = transfer_half_width(calibrated, cluster)

    def logarithm(parameters: Parameters) -> Array:
        return np.log(iteration_times_s(w, machine(cluster, parameters, protocol), parameters))

    base = logarithm(calibrated.parameters)

    def slope_of(name: str, value: float) -> Array:
        moved = calibrated.parameters.model_copy(update={name: value})
        return (logarithm(moved) - base) / _STEP

    values = ((name, getattr(calibrated.parameters, name)) for name in calibrated.fitted)
    slope = np.array([slope_of(name, value * np.exp(_STEP)) for name, value in values])
    variance = np.einsum("ir,ij,jr->r", slope, np.array(calibrated.covariance), slope)
    network = slope_of("network_error", _STEP) if cluster.network is not None else 0.0
    width: Array = np.sqrt(quantile**2 + transfer**2 + network**2 + DEVIATIONS**2 * variance)
    return width


def draw_parameters(calibrated: Calibration, cluster: Cluster) -> Parameters:
    """Draw parameters from their distribution, as a column of values each.

    One more factor applies to all computing. It varies by the cross-validated residuals, more on a
    GPU that was not calibrated. A measured network adds one error for all its collectives.
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
    """Flatten drawn parameters to rows, for a plan whose fields have no axis."""
    drawn = {name: np.ravel(value) for name, value in parameters if np.ndim(value)}
    return parameters.model_copy(update=drawn)


def slower(parameters: Parameters, gpu: Any, host: Any) -> Parameters:
    """Return parameters by which the GPU takes `gpu` times as long and the host `host` times."""
    changed = {name: getattr(parameters, name) / gpu for name in _RATES}
    changed["kernel_s"] = parameters.kernel_s * gpu
    changed |= {name: getattr(parameters, name) * host for name in _HOST}
    return parameters.model_copy(update=changed)
