"""Times of an operator between measured sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from scipy.interpolate import RegularGridInterpolator

from repro.catalog.studies.operator_benchmarks import COLLECTIVES, cached_axes, in_cache_lines
from repro.predict.workload import Array

# Columns of an operator's or a call's sizes.
SIZES = ("size_0", "size_1", "size_2", "size_3")


@dataclass(frozen=True)
class Curve:
    """Seconds of an operator over its sizes, which were measured in all combinations.

    Time is linear between sizes, and along axes `in_caches`, where caches hold a fraction, linear
    in their logarithms. Sizes below the smallest take as long as that. Above the largest, the last
    two are extrapolated, to no less than the shortest time.
    """

    axes: tuple[Array, ...]
    times_s: Array
    in_caches: tuple[int, ...] = ()

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
        return np.log(sizes) if number in self.in_caches else sizes


def curves(results: xr.Dataset, ranks: int = 1) -> dict[str, Curve]:
    """Return each operator's curve among this many ranks, else among the fewest measured.

    A collective has a curve only if it was measured among this many. Times are means over repeats,
    by sizes `in_cache_lines`.
    """
    table = sizes_of(results, "operator").assign(
        operator=results["operator_name"].values,
        ranks=results["operator_ranks"].values,
        seconds=results["operator_time_s"].mean("repeat").values,
    )
    found = {}
    for operator, measured in table.groupby("operator"):
        among = ranks if ranks in measured.ranks.values else measured.ranks.min()
        if among != ranks and operator in COLLECTIVES.values():
            continue
        rows = measured[measured.ranks == among]
        columns = [name for name in SIZES if rows[name].notna().all()]
        sizes = pd.DataFrame(in_cache_lines(str(operator), rows[columns]), columns=columns)
        found[str(operator)] = curve_of(str(operator), sizes, rows.seconds.to_numpy())
    return found


def curve_of(operator: str, sizes: pd.DataFrame, seconds: Array) -> Curve:
    """Return the curve of times that were measured at all combinations of sizes (column: axis)."""
    means = sizes.assign(seconds=seconds).groupby(list(sizes.columns)).seconds.mean()
    axes = tuple(np.unique(sizes[name].to_numpy()) for name in sizes)
    times_s = means.to_numpy().reshape([len(axis) for axis in axes])
    return Curve(axes, times_s, cached_axes(operator))


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
