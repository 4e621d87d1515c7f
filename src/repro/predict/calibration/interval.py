"""How sure a prediction is: what calibration leaves open, and what the model itself gets wrong."""

import numpy as np

from repro.catalog.clusters import Cluster
from repro.catalog.protocols import Protocol
from repro.predict.network.machine import machine
from repro.predict.parameters import Calibration, Parameters
from repro.predict.step.quantities import iteration_times_s
from repro.predict.workload import Array, Workload

LEVEL = 0.90
# The 5 % to 95 % quantiles of a normal distribution, in standard deviations.
DEVIATIONS = 1.645
_STEP = 0.01
# On a GPU other than the calibrated one, or another generation of the software: two published runs
# of one configuration (530B on 280 GPUs a replica, full recomputation) differ by 10 %, 49.05 s
# (Korthikanti et al., 2023) and 54.09 s (Narayanan et al., 2021); sustained clocks differ too.
_TRANSFER = 0.15

ALONE, TENSOR_PARALLEL = "without tensor parallelism", "with tensor parallelism"


def regime(w: Workload) -> Array:
    """Name of the regime whose residuals hold for each row of a flat workload."""
    return np.where(w.tensor_parallel > 1, TENSOR_PARALLEL, ALONE)


def transfer_half_width(calibrated: Calibration, cluster: Cluster) -> float:
    """What a calibration made on another GPU adds to the half width."""
    return 0.0 if cluster.gpu == calibrated.gpu else _TRANSFER


def half_width(
    w: Workload, cluster: Cluster, calibrated: Calibration, protocol: Protocol | None = None
) -> Array:
    """Half of the 90 % interval of ln(iteration time).

    The quantile of the cross-validated residuals of the row's regime, and in quadrature the
    parameters' covariance and the half width of a measured network, carried through the model by
    differences.

    Returns
    -------
    Array
        x, for an interval from time / e^x to time e^x.
    """
    regimes = regime(w)
    quantile = np.zeros(regimes.shape)
    transfer = transfer_half_width(calibrated, cluster)
    for name, residuals in calibrated.residuals.items():
        quantile = np.where(regimes == name, residuals.half_width, quantile)

    def logarithm(parameters: Parameters) -> Array:
        return np.log(iteration_times_s(w, machine(cluster, parameters, protocol), parameters))

    base = logarithm(calibrated.parameters)

    def slope_of(name: str, value: float) -> Array:
        moved = calibrated.parameters.model_copy(update={name: value})
        return (logarithm(moved) - base) / _STEP

    slope = np.array(
        [
            slope_of(name, getattr(calibrated.parameters, name) * np.exp(_STEP))
            for name in calibrated.fitted
        ]
    )
    variance = np.einsum("ir,ij,jr->r", slope, np.array(calibrated.covariance), slope)
    network = slope_of("network_error", _STEP) if cluster.network is not None else 0.0
    width: Array = np.sqrt(quantile**2 + transfer**2 + network**2 + DEVIATIONS**2 * variance)
    return width
