"""What makes newer GPUs faster, and what GPUs of nodes to come would wait for. All predicted."""

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
# Of memories, or of nodes; there are as many as of either.
_COLOURS = [GREY, ORANGE, SKY_BLUE, BLUE, GREEN, PURPLE, VERMILION]
_BOUNDS = {"compute": BLUE, "memory": GREEN, "network": VERMILION}
_RATE_LABELS = {
    "memory_gbytes_per_s": "GB/s of its memory",
    "network_gbps": "Gbit/s of its network",
}


def parts_of_speed_up(parts: pd.DataFrame, title: str) -> hv.Overlay:
    """From one GPU to another part by part, each bar beginning where the one above ends: by how
    much a part shortens an iteration, with the range over all orders, of `speed_up_by_part`."""
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
            title=f"{title}: {whole:.1f} times in all",
            **_size(),
        )
    )


def waits_by_node(waited_s: xr.DataArray) -> hv.Bars:
    """What an iteration waits for beside computing, in percent of it, a bar per node, of
    `explore_designs` at one memory and network (bound, nm)."""
    shares = 100 * waited_s / waited_s.sum("bound", skipna=False)
    table = shares.to_series().unstack("bound")[list(_BOUND_COLOURS)]
    table = table.sort_index(ascending=False)
    table.index = pd.Index([f"{nm:g} nm" for nm in table.index], name="node")
    return table.hvplot.bar(
        stacked=True,
        color=list(_BOUND_COLOURS.values()),
        xlabel="",
        ylabel="% of the iteration",
        title="What an iteration waits for beside computing (predicted)",
        legend="right",
        width=860,
        height=360,
    )


def speed_by_memory(waited_s: xr.DataArray) -> hv.NdOverlay:
    """Iterations per minute against the node, a line per memory, at one network."""
    per_minute = (60 / waited_s.sum("bound", skipna=False)).to_series().unstack("memory")
    per_minute = per_minute[list(waited_s.memory.values)].sort_index(ascending=False)
    per_minute.index = pd.Index([f"{nm:g} nm" for nm in per_minute.index], name="node")
    return per_minute.hvplot.line(
        color=_COLOURS[: per_minute.shape[1]],
        ylabel="iterations per minute",
        title="Memory's part, by node (predicted)",
        legend="right",
        width=860,
        height=360,
    )


def generations_compared(by_model: dict[str, pd.DataFrame], first: str) -> hv.Layout:
    """How many times as fast as on one GPU a model is trained, with 90 % intervals; a panel each.

    Parameters
    ----------
    by_model
        By the model's label: of `repro.predict.explore.hardware.generations.generations`.
    first
        The label of a GPU that all of them have.
    """
    drawn = []
    for label, table in by_model.items():
        one = table.iteration_time_s[first]
        value, low, high = (one / table[name] for name in ("iteration_time_s", "high_s", "low_s"))
        names = list(table.index)
        spread = (names, value, value - low, high - value)
        points = hv.Scatter((names, value), "GPU", "times") * hv.ErrorBars(
            spread, "GPU", ["times", "below", "above"]
        )
        drawn.append(
            points.opts(
                title=label,
                xlabel="",
                ylabel=f"times as fast as {first} (predicted)",
                xrotation=60,
                **panel_size(logy=True),
            )
        )
    return panels(drawn)


def bound_regions(cube: xr.Dataset, along: str) -> hv.QuadMesh:
    """The rate that would shorten an iteration most, by computing and another rate, of
    `design_cube` at one value of all else (peak_tflops, along)."""
    bound = cube.bound.transpose(along, "peak_tflops")
    names = bound.attrs["meanings"]
    grid = (bound.peak_tflops.values, bound[along].values, bound.values)
    return hv.QuadMesh(grid, ["TFLOP/s of a GPU", _RATE_LABELS[along]], "bound").opts(
        cmap=[_BOUNDS[name] for name in names],
        clim=(-0.5, len(names) - 0.5),
        title="Helps most: computing (blue), memory (green), network (orange)",
        **panel_size(logx=True, logy=True),
    )


def fronts(by_node: dict[str, pd.DataFrame]) -> hv.Overlay:
    """Iterations per minute against the power of a GPU: the designs that no other is better than.

    Parameters
    ----------
    by_node
        By the node's label: of `pareto_front` (`repro.predict.explore.hardware.design_cube`).
    """
    drawn = [
        hv.Curve(
            (table.power_w, 60 / table.iteration_time_s),
            "W of a GPU",
            "iterations per minute",
            label=label,
        ).opts(color=colour)
        for (label, table), colour in zip(by_node.items(), _COLOURS[: len(by_node)], strict=True)
    ]
    return hv.Overlay(drawn).opts(
        title="The fastest design for each power, by node (predicted)",
        logx=True,
        logy=True,
        legend_position="right",
        **_size(),
    )


def _size() -> dict[str, object]:
    return options(matplotlib={"aspect": 2.2, "fig_size": 190}, bokeh={"width": 860, "height": 390})
