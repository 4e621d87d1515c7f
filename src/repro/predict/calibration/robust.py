"""The most probable parameters by measurements, some of which are off by themselves, and priors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from repro.predict.parameters import Prior
from repro.predict.workload import Array

# Logarithmic errors beyond this count less (soft L1).
_SCALE = 0.05


@dataclass(frozen=True)
class MostProbable:
    """Values by name, and the covariance of their logarithms."""

    values: dict[str, float]
    covariance: Array


def most_probable(
    log_errors: Callable[[dict[str, float]], Array],
    weights: Array,
    priors: Mapping[str, Prior],
    diff_step: float | None = None,
) -> MostProbable:
    """Least squares over the logarithms of parameters.

    Parameters
    ----------
    log_errors
        ln(predicted / measured) of every row by the parameters' values.
    weights
        Of the rows' squares.
    priors
        Of all that is fitted.
    diff_step
        Relative step of the derivatives; None: scipy's, which is exact where there are no steps.
    """
    medians = np.log([prior.median for prior in priors.values()])
    deviations = np.array([prior.deviation for prior in priors.values()])

    def named(logarithms: Array) -> dict[str, float]:
        return dict(zip(priors, np.exp(logarithms).tolist(), strict=True))

    def residuals(logarithms: Array) -> Array:
        errors = log_errors(named(logarithms))
        # least_squares's own robust loss would flatten the priors too.
        robust = np.sign(errors) * soft_l1(errors / _SCALE)
        return np.concatenate([np.sqrt(weights) * robust, (logarithms - medians) / deviations])

    found = least_squares(residuals, medians, x_scale=deviations, diff_step=diff_step)
    return MostProbable(named(found.x), np.linalg.inv(found.jac.T @ found.jac))


def soft_l1(errors: Array) -> Array:
    """Size of residuals whose squares grow like the error where errors are large."""
    root: Array = np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
    return root
