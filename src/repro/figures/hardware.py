"""What makes newer GPUs faster, and what GPUs of nodes to come would wait for. All predicted."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

_BOUND_COLOURS = {
    "memory": "#009E73",
    "network": "#D55E00",
    "schedule": "#DDDDDD",
}
_MEMORY_COLOURS = ["#999999", "#E69F00", "#56B4E9", "#0072B2", "#009E73", "#CC79A7"]


def parts_of_speed_up(parts: pd.DataFrame, title: str) -> hv.Overlay:
    """By how much each part shortens an iteration, with the range over all orders, of
    `speed_up_by_part`; their product stands on top."""
    whole = np.prod(parts.factor.to_numpy())
    shown = parts.iloc[::-1]
    names = list(shown.index)
    bars = shown.hvplot.barh(
        y="factor",
        color="#0072B2",
        # Bars lie on their side, and their axes' labels do not.
        xlabel="times as fast (predicted; line: over all orders of the parts)",
        ylabel="",
        title=f"{title}: {whole:.1f} times in all",
        width=860,
        height=300,
        legend=False,
    )
    ranges = (names, shown.factor, shown.factor - shown.least, shown.most - shown.factor)
    return bars * hv.ErrorBars(
        tuple(list(part) for part in ranges), "index", ["factor", "below", "above"]
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
        color=_MEMORY_COLOURS[: per_minute.shape[1]],
        ylabel="iterations per minute",
        title="Memory's part, by node (predicted)",
        legend="right",
        width=860,
        height=360,
    )
