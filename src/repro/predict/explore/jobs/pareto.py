"""Choices that no other choice is better than."""

import numpy as np

from repro.predict.workload import Array


def pareto(costs: Array) -> Array:
    """Which rows no other row is better than: nowhere worse, and somewhere less.

    Parameters
    ----------
    costs : (n, k) array
        k quantities of n choices, less is better.

    Returns
    -------
    (n,) array of bool
    """
    nowhere_worse = (costs[:, None] <= costs[None]).all(axis=-1)
    somewhere_less = (costs[:, None] < costs[None]).any(axis=-1)
    return np.asarray(~(nowhere_worse & somewhere_less).any(axis=0))
