"""Confidence intervals of means, and the criterion that ends a measurement."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
# Half width of the interval of a normal distribution, in standard errors.
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def student_quantile(count: int) -> float:
    """Return the half width of the interval of a mean of `count` values, in standard errors."""
    # It takes a seventh of a second to import; commands that only read results do not need it.
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


def half_width(values: Sequence[float]) -> float:
    """Return half of the confidence interval of the mean of independent values, by Student's t.

    The level is `CONFIDENCE`. The half width is infinite for fewer than two values.
    """
    if len(values) < 2:
        return math.inf
    return student_quantile(len(values)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def reached_target_precision(values: Sequence[float], half_interval: float) -> bool:
    """Whether half of the confidence interval is at most `half_interval` times the mean."""
    return half_width(values) <= half_interval * float(np.mean(values))
