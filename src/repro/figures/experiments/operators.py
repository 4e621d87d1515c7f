"""Single operators of this machine's CPU by size, and iterations predicted from them."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION
from repro.figures.panels import not_run_here
from repro.predict.operators.curves import SIZES, sizes_of
from repro.predict.operators.trace_replay import iterations
from repro.results.store import has_runs

_COLOURS = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK]
_SHOWN = ("add/2", "mul/1", "tanh/1", "copy_/2", "copy_ strided", "sum/1")


def _benchmarks(results: xr.Dataset) -> pd.DataFrame:
    """Return sizes and median seconds of every benchmark, with the operator without precisions."""
    names = results["operator"].values[results["benchmark_operator"].values]
    table = sizes_of(results, "benchmark").assign(
        operator=[str(name).split(" fp32")[0] for name in names],
        seconds=results["benchmark_time_s"].median("repeat").values,
    )
    # Copies from integers have one precision, other copies two.
    return table.drop_duplicates(["operator", *SIZES])


def product_rates(results: xr.Dataset) -> hv.core.Dimensioned:
    """Draw rates of matmuls by their operations, one colour per layout of operands."""
    if not has_runs(results):
        return not_run_here(results)
    table = _benchmarks(results)
    table = table[table.operator.str.startswith("product ")]
    flops = 2 * table[["size_0", "size_1", "size_2"]].prod(axis=1)
    table = table.assign(
        flops=flops, gflops=flops / table.seconds / 1e9, operands=table.operator.str.split().str[1]
    )
    return table.hvplot.scatter(
        "flops",
        "gflops",
        by="operands",
        color=_COLOURS[: table.operands.nunique()],
        s=60,
        alpha=0.5,
        logx=True,
        logy=True,
        xlabel="operations of a product (2 m n k)",
        ylabel="GFLOP/s (measured)",
        title="Products on one thread: n as they lie, t transposed",
        width=860,
        height=400,
    )


def element_times(results: xr.Dataset) -> hv.core.Dimensioned:
    """Draw the time of element-wise operators by elements, measured on one thread."""
    if not has_runs(results):
        return not_run_here(results)
    table = _benchmarks(results)
    table = table[table.operator.isin(_SHOWN)].assign(time_us=1e6 * table.seconds)
    of = {"by": "operator", "color": _COLOURS[: table.operator.nunique()]}
    lines = table.hvplot.line("size_0", "time_us", width=860, height=400, **of)
    points = table.hvplot.scatter("size_0", "time_us", s=400, **of)
    return (lines * points).opts(
        hv.opts.Overlay(
            logx=True,
            logy=True,
            xlabel="elements",
            ylabel="microseconds per call (measured)",
            title="Element-wise operators and copies on one thread",
            legend_position="top_left",
        )
    )


def replayed_iterations(results: xr.Dataset) -> hv.core.Dimensioned:
    """Draw predicted over measured iterations; lines are where they agree, and 5 % off."""
    if not has_runs(results):
        return not_run_here(results)
    found = iterations(results)
    ends = np.array([0.8 * found.measured_ms.min(), 1.25 * found.measured_ms.max()])
    lines = [
        hv.Curve((ends, factor * ends)).opts(color=colour)
        for factor, colour in ((0.95, "#CCCCCC"), (1.0, "#777777"), (1.05, "#CCCCCC"))
    ]
    marks = found.hvplot.scatter(
        "measured_ms",
        "predicted_ms",
        by="model",
        color=_COLOURS[: found.model.nunique()],
        s=250,
        width=700,
        height=500,
    )
    return (marks * hv.Overlay(lines)).opts(
        hv.opts.Overlay(
            logx=True,
            logy=True,
            xlabel="measured iteration in ms",
            ylabel="predicted in ms",
            title="Iterations predicted from their operators",
            legend_position="bottom_right",
        )
    )
