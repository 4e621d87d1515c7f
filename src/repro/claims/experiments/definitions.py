"""What a claim's test is, and what the tests of several experiments are made of.

A test computes a number (`Quantity`) or decides an order or a trend (`Statement`) from an
experiment's results. Results may be resampled: every helper here reduces all dimensions but
`resample`, so that a test gives one answer a resample, and one without if there are none.
"""

from collections.abc import Hashable
from dataclasses import dataclass

import xarray as xr

from repro.results.metrics import Statistic, iteration_time_s

# Compute times that differ by less are called flat (claim C080 gives no number).
FLAT = 0.10


@dataclass(frozen=True)
class Quantity:
    """A claimed number: how to compute it, in the claim's unit, and what "no effect" would be.

    `neutral` is the value at which the claim would say nothing (a ratio of 1, an efficiency of
    100 %, half of the time); None where there is no such value. `formula` says in symbols and words
    what `compute` does: T is the time of an iteration or of the part that is named, n GPUs are in
    parentheses.
    """

    experiment: str
    compute: Statistic
    neutral: float | None
    formula: str


@dataclass(frozen=True)
class Statement:
    """A claimed order or trend: whether it holds (1, 0, or NaN where results are missing), and in
    symbols and words what that means."""

    experiment: str
    holds: Statistic
    formula: str


def mean(values: xr.DataArray) -> xr.DataArray:
    """Mean over all dimensions but resamples; NaN where a value is missing."""
    return values.mean(_all_but_resample(values), skipna=False)


def largest(values: xr.DataArray) -> xr.DataArray:
    """Largest of all, one a resample; NaN where a value is missing."""
    return values.max(_all_but_resample(values), skipna=False)


def smallest(values: xr.DataArray) -> xr.DataArray:
    """Smallest of what there is, one a resample; missing values are passed over."""
    return values.min(_all_but_resample(values))


def above_zero(margins: xr.DataArray) -> xr.DataArray:
    """Whether all are above zero (1 or 0), one answer a resample; NaN where one is missing."""
    least = margins.min(_all_but_resample(margins), skipna=False)
    return (least > 0).where(least.notnull())


def falls(values: xr.DataArray, dim: str, order: tuple[object, ...]) -> xr.DataArray:
    """Whether each value along `dim`, taken in `order`, is less than the one before."""
    ordered = values.sel({dim: list(order)})
    return above_zero(-ordered.diff(dim))


def is_highest(values: xr.DataArray, model: str) -> xr.DataArray:
    """Whether a model's value is above that of each other one."""
    return above_zero(values.sel(model=model, drop=True) - values.drop_sel(model=model))


def times_ordered(results: xr.Dataset) -> xr.DataArray:
    """Whether TCP's iterations on 8 GPUs are longer than IPoIB's, and those than RDMA's."""
    time = iteration_time_s(results).sel(gpus=8).mean("model", skipna=False)
    return falls(time, "protocol", ("tcp", "ipoib", "rdma"))


def _all_but_resample(values: xr.DataArray) -> list[Hashable]:
    return [dim for dim in values.dims if dim != "resample"]
