"""Speed-ups of newer GPUs by part, and bottlenecks of GPUs of future silicon, predicted."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import options, panel_size, panels

_BOUND_COLOURS = {
    "memory": GREEN,
    "network": VERMILION,
    "schedule": "#DDDDDD",
}
# Colours of memories or of silicon processes, enough for either.
_COLOURS = [GREY, ORANGE, SKY_BLUE, BLUE, GREEN, PURPLE, VERMILION]
_BOUNDS = {"compute": BLUE, "memory": GREEN, "network": VERMILION}
_RATE_LABELS = {
    "memory_gbytes_per_s": "GB/s of its memory",
    "network_gbps": "Gbit/s of its network",
}


def parts_of_speed_up(parts: pd.DataFrame, title: str, base_s: float | None = None) -> hv.Overlay:
    """Draw how much each part of a GPU shortens an iteration (`speed_up_by_part`).

    Lines are the range over all orders of parts; each bar begins where the one above ends. The
    title has the seconds on the first GPU, `base_s`, if they are given.
    """
    after = parts.factor.cumprod().to_numpy()
    before = after / parts.factor.to_numpy()
    whole = after[-1]
    rows = np.arange(len(parts), 0, -1)
    low, high = before * parts.least.to_numpy(), before * parts.most.to_numpy()
    bars = hv.Rectangles(
        (
            np.append(before, 1.0),
            np.append(rows, 0) - 0.35,
            np.append(after, whole),
            np.append(rows, 0) + 0.35,
        ),
        ["times", "row", "times after", "row after"],
    )
    names = [f"{name} ({factor:.2g} x)" for name, factor in parts.factor.items()]
    return (bars.opts(color=BLUE) * hv.Segments((low, rows, high, rows)).opts(color="black")).opts(
        hv.opts.Rectangles(
            logx=True,
            xticks=[1, 2, 5, 10, 20, 50, 100],
            # The first bar begins at one.
            xlim=(0.9 * min(1.0, low.min()), 1.1 * max(whole, high.max())),
            xlabel="times as fast (predicted; line: over all orders of the parts)",
            ylabel="",
            yticks=[*zip(rows, names, strict=True), (0, "in all")],
            title=f"{title}: {whole:.1f} times in all"
            + (f", {base_s:.3g} to {base_s / whole:.3g} s per iteration" if base_s else ""),
            **_size(),
        )
    )


def waits_by_node(waited_s: xr.DataArray) -> hv.Bars:
    """Draw the parts of an iteration other than computing in percent, a bar per silicon process.

    Names have the seconds of an iteration. Rows are of `designs_by_node` at one memory (bound, nm).
    """
    whole_s = waited_s.sum("bound", skipna=False).to_series()
    shares = 100 * waited_s / waited_s.sum("bound", skipna=False)
    table = shares.to_series().unstack("bound")[list(_BOUND_COLOURS)]
    table = table.sort_index(ascending=False)
    names = [f"{nm:g} nm, {whole_s[nm]:.3g} s" for nm in table.index]
    table.index = pd.Index(names, name="process")
    return table.hvplot.bar(
        stacked=True,
        color=list(_BOUND_COLOURS.values()),
        xlabel="silicon process, and seconds per iteration",
        ylabel="% of the iteration",
        rot=30,
        title="Time lost to memory, network and schedule (predicted)",
        legend="right",
        width=860,
        height=360,
    )


def speed_by_memory(waited_s: xr.DataArray) -> hv.NdOverlay:
    """Draw iterations per minute by silicon process, with a colour per memory.

    Points are not joined, because there is no process between two.
    """
    per_minute = (60 / waited_s.sum("bound", skipna=False)).to_series().unstack("memory")
    per_minute = per_minute[list(waited_s.memory.values)].sort_index(ascending=False)
    per_minute.index = pd.Index([f"{nm:g} nm" for nm in per_minute.index], name="silicon process")
    return per_minute.hvplot.scatter(
        color=_COLOURS[: per_minute.shape[1]],
        s=300,
        alpha=0.8,
        xlabel="silicon process",
        ylabel="iterations per minute",
        title="Iterations per minute by silicon process and memory (predicted)",
        legend="right",
        width=860,
        height=360,
    )


def generations_compared(by_model: dict[str, pd.DataFrame], first: str) -> hv.Layout:
    """Draw how many times as fast as on one GPU each model is trained, with 90 % intervals.

    There is a panel per model, whose title has the seconds on that GPU. Points have their own
    seconds.

    Parameters
    ----------
    by_model
        Output of `repro.predict.explore.hardware.generations` by the model's label.
    first
        Label of a GPU that all of them have.
    """
    drawn = []
    for label, table in by_model.items():
        one = table.iteration_time_s[first]
        value, low, high = (one / table[name] for name in ("iteration_time_s", "high_s", "low_s"))
        names = list(table.index)
        spread = (names, value, value - low, high - value)
        shown = (names, value, table.iteration_time_s)
        points = hv.Scatter(shown, "GPU", ["times", "iteration_s"]).opts(
            **options(matplotlib={"s": 45}, bokeh={"size": 9, "tools": ["hover"]})
        )
        points = points * hv.ErrorBars(spread, "GPU", ["times", "below", "above"])
        drawn.append(
            points.opts(
                title=f"{label}; {first}: {one:.3g} s per iteration",
                xlabel="",
                ylabel=f"times as fast as {first} (predicted)",
                xrotation=60,
                **panel_size(logy=True),
            )
        )
    return panels(drawn)


def bound_regions(cube: xr.Dataset, along: str) -> hv.QuadMesh:
    """Draw the rate that limits an iteration most, by computing and another rate.

    The rates are of `design_cube` at one value of all others (peak_tflops, along).
    """
    bound = cube.bound.transpose(along, "peak_tflops")
    names = bound.attrs["meanings"]
    grid = (bound.peak_tflops.values, bound[along].values, bound.values)
    return hv.QuadMesh(grid, ["TFLOP/s of a GPU", _RATE_LABELS[along]], "bound").opts(
        cmap=[_BOUNDS[name] for name in names],
        clim=(-0.5, len(names) - 0.5),
        title="Limited most by computing (blue), memory (green), network (orange)",
        **panel_size(logx=True, logy=True),
    )


def fronts(by_node: dict[str, pd.DataFrame]) -> hv.Overlay:
    """Draw iterations per minute of the Pareto-optimal designs against the power of a GPU.

    Lines are steps, because between two designs the one of less power is the fastest.

    Parameters
    ----------
    by_node
        Output of `repro.predict.explore.hardware.pareto_front` by the node's label.
    """
    drawn = [
        hv.Curve(
            (table.power_w, 60 / table.iteration_time_s),
            "W of a GPU",
            "iterations per minute",
            label=label,
        ).opts(color=colour, interpolation="steps-post")
        for (label, table), colour in zip(by_node.items(), _COLOURS[: len(by_node)], strict=True)
    ]
    return hv.Overlay(drawn).opts(
        title="Pareto-optimal designs by silicon process (predicted)",
        logx=True,
        logy=True,
        legend_position="right",
        **_size(),
    )


def _size() -> dict[str, object]:
    return options(matplotlib={"aspect": 2.2, "fig_size": 190}, bokeh={"width": 860, "height": 390})
