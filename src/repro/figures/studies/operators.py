"""Single operators by size (measured), and iterations timed again from them."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW
from repro.figures.panels import not_run_here
from repro.predict.operators.trace_replay import iterations
from repro.results.store import has_runs

_COLOURS = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, BLACK]
_SHOWN = ("add/2", "mul/1", "tanh/1", "copy_/2", "copy_ strided", "sum/1")
_TABLES = "dlrm"


def product_rates(results: xr.Dataset) -> hv.core.Dimensioned:
    """Rates of matrix products by their operations, of each way that operands lie; as many as there
    are shapes, measured on one thread."""
    if not has_runs(results):
        return not_run_here(results)
    names = results["operator_name"].values
    alone = results["operator_ranks"].values == 1
    own = results.isel(benchmark=alone & [str(name).startswith("product ") for name in names])
    flops = 2 * own["operator_size"].isel(axis=slice(3)).prod("axis").values
    table = pd.DataFrame(
        {
            "flops": flops,
            "gflops": flops / own["operator_time_s"].mean("repeat").values / 1e9,
            "operands": [str(name).split()[1] for name in own["operator_name"].values],
        }
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
    """Draw the mean time of element-wise work by elements, measured on one thread; bars reach from
    the fastest to the slowest repeat."""
    if not has_runs(results):
        return not_run_here(results)
    names = results["operator_name"].values
    alone = results["operator_ranks"].values == 1
    own = results.isel(benchmark=alone & [str(name) in _SHOWN for name in names])
    times = 1e6 * own["operator_time_s"]
    middle = times.mean("repeat").values
    table = pd.DataFrame(
        {
            "elements": own["operator_size"].isel(axis=0).values,
            "time_us": middle,
            "below": middle - times.min("repeat").values,
            "above": times.max("repeat").values - middle,
            "operator": own["operator_name"].values.astype(str),
        }
    )
    colours = _COLOURS[: table.operator.nunique()]
    lines = table.hvplot.line(
        "elements", "time_us", by="operator", color=colours, width=860, height=400
    )
    points = table.hvplot.scatter("elements", "time_us", by="operator", color=colours, s=400)
    bars = table.hvplot.errorbars("elements", "time_us", yerr1="below", yerr2="above")
    return (lines * points * bars).opts(
        hv.opts.Overlay(
            logx=True,
            logy=True,
            xlabel="elements",
            ylabel="microseconds per call (measured)",
            title="Element-wise work and copies on one thread",
            legend_position="top_left",
        )
    )


def retimed_iterations(results: xr.Dataset) -> hv.core.Dimensioned:
    """Iterations as predicted from operators against those measured; lines are where both are the
    same, and 5 % beside it."""
    if not has_runs(results):
        return not_run_here(results)
    found = iterations(results)
    table = pd.DataFrame(
        {
            "measured": 1e3 * found.measured_s,
            "predicted": 1e3 * found.predicted_s,
            "model": np.where(
                found.model == _TABLES,
                [f"{_TABLES}, {ranks} ranks" for ranks in found.ranks],
                found.model,
            ),
        }
    )
    ends = np.array([0.8 * table.measured.min(), 1.25 * table.measured.max()])
    lines = [
        hv.Curve((ends, factor * ends)).opts(color=colour)
        for factor, colour in ((0.95, "#CCCCCC"), (1.0, "#777777"), (1.05, "#CCCCCC"))
    ]
    colours = [*_COLOURS, SKY_BLUE, YELLOW][: table.model.nunique()]
    marks = table.hvplot.scatter(
        "measured", "predicted", by="model", color=colours, s=250, width=700, height=500
    )
    return (marks * hv.Overlay(lines)).opts(
        hv.opts.Overlay(
            logx=True,
            logy=True,
            xlabel="measured iteration in ms",
            ylabel="predicted in ms",
            title="Iterations timed again from their operators",
            legend_position="bottom_right",
        )
    )
