"""How well a mean is known, so that a measurement can end when it is known well enough."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95
# Standard errors to either side of what is distributed normally.
NORMAL_QUANTILE = float(ndtri((1 + CONFIDENCE) / 2))


def half_width(values: Sequence[float]) -> float:
    """Half of the interval of the mean of independent values at `CONFIDENCE`, by Student's t.

    Infinite for fewer than two values.
    """
    if len(values) < 2:
        return math.inf
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return quantile * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def is_known(values: Sequence[float], half_interval: float) -> bool:
    """Whether half of the interval of their mean is at most so much of it."""
    return half_width(values) <= half_interval * float(np.mean(values))
