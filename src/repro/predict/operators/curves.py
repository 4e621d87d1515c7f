"""Times of an operator between measured sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from scipy.interpolate import RegularGridInterpolator

from repro.catalog.studies.operator_benchmarks import cached_axis
from repro.predict.workload import Array

# Columns of an operator's or a call's sizes.
SIZES = ("size_0", "size_1", "size_2", "size_3")


@dataclass(frozen=True)
class Curve:
    """Seconds of an operator over its sizes, which were measured in all combinations.

    Time is linear between sizes, and along the axis `in_caches`, of which caches hold a fraction,
    linear in its logarithm. Sizes below the smallest take as long as that. Above the largest, the
    last two are extrapolated, to no less than the shortest time.
    """

    axes: tuple[Array, ...]
    times_s: Array
    in_caches: int | None = None

    def seconds(self, sizes: Array) -> Array:
        """Predict seconds of sizes (call, axis)."""
        lines = [
            (self._line(number, axis), self._line(number, np.maximum(column, axis[0])))
            for number, (axis, column) in enumerate(zip(self.axes, sizes.T, strict=True))
            if len(axis) > 1
        ]
        if not lines:
            return np.full(len(sizes), float(self.times_s.squeeze()))
        axes, inside = zip(*lines, strict=True)
        interpolate = RegularGridInterpolator(
            axes, self.times_s.squeeze(), bounds_error=False, fill_value=None
        )
        seconds: Array = np.maximum(interpolate(np.stack(inside, axis=-1)), self.times_s.min())
        return seconds

    def _line(self, number: int, sizes: Array) -> Array:
        return np.log(sizes) if number == self.in_caches else sizes


def operator_curves(measured: xr.Dataset) -> dict[str, Curve]:
    """Return curves of operators by their name and precisions: medians over repeats.

    Operators with a size that could not be measured have no curve.
    """
    sizes = sizes_of(measured, "benchmark")
    table = sizes.assign(
        operator=measured["operator"].values[measured["benchmark_operator"].values],
        seconds=measured["benchmark_time_s"].median("repeat").values,
    )
    found = {}
    for operator, rows in table.groupby("operator"):
        own = rows[sizes.columns].dropna(axis="columns", how="all")
        if len(own) == own.nunique().prod():
            means = own.assign(seconds=rows.seconds).groupby(list(own.columns)).seconds.mean()
            axes = tuple(np.unique(own[name].to_numpy()) for name in own)
            times_s = means.to_numpy().reshape([len(axis) for axis in axes])
            found[str(operator)] = Curve(axes, times_s, cached_axis(str(operator)))
    return found


def calls_with_curves(
    table: pd.DataFrame, measured: Mapping[str, Curve]
) -> Iterator[tuple[str, Array, Array]]:
    """Yield each operator that has a curve, the positions of its calls, and their sizes."""
    for operator, at in table.groupby("operator").indices.items():
        if curve := measured.get(str(operator)):
            columns = list(SIZES[: len(curve.axes)])
            sizes = table.iloc[at][columns].to_numpy(dtype=float)
            yield str(operator), np.asarray(at), sizes


def sizes_of(results: xr.Dataset, kind: str) -> pd.DataFrame:
    """Return the sizes of a dataset's operators or calls, a column per axis."""
    return pd.DataFrame(results[f"{kind}_size"].values, columns=list(SIZES))
