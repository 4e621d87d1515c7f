"""Figure 5 of the journal paper in two readings, and rates and timelines that explain it.

Times are full-scale equivalents: testbed seconds divided by the configuration's time scale.
"""

import holoviews as hv
import pandas as pd
import xarray as xr

from repro.figures.experiments.scaling import link_rates_gbps, protocol_colour
from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW
from repro.figures.panels import (
    HEIGHT,
    WIDTH,
    bars,
    model_labels,
    model_names,
    not_run_here,
    option,
    options,
    panels,
    protocol_labels,
    shows_legend,
    stacked_panels,
)
from repro.results.metrics import (
    embedding_sync_s,
    forward_receive_s,
    iteration_time_s,
    last_stage_s,
    pipeline_split_s,
)
from repro.results.store import has_runs

# Compute in blues, bytes in reds, waiting in yellows.
_TIMER_COLOURS = {
    "forward compute": SKY_BLUE,
    "backward compute": BLUE,
    "forward receive": ORANGE,
    "embedding sync": VERMILION,
    "optimizer and the rest": GREY,
}
_SPLIT_COLOURS = {
    "forward compute": SKY_BLUE,
    "backward compute": BLUE,
    "messages": PURPLE,
    "embedding sync": VERMILION,
    "gradient sync": "#882255",
    "waiting for neighbours": YELLOW,
    "drain": ORANGE,
    "optimizer": GREEN,
    "other": GREY,
}
_STATE_COLOURS = {"compute": BLUE, "wait": YELLOW, "message": PURPLE}
# Phases of a stage until it only waits for the others.
_BEFORE_DRAIN = (
    "forward compute",
    "backward compute",
    "forward receive",
    "backward receive",
    "send",
)
_LANE = 0.35


def timer_breakdown(results: xr.Dataset) -> hv.Layout:
    """Draw iterations by the paper's timers on the last stage (figure 5a-d).

    Forward receive contains the fill, the embedding sync the drain. Points are single iterations; a
    line is the 95 % interval of their mean.
    """
    if not has_runs(results):
        return not_run_here(results)
    shown = {
        "forward compute": last_stage_s(results, "forward compute"),
        "backward compute": last_stage_s(results, "backward compute"),
        "forward receive": forward_receive_s(results),
        "embedding sync": embedding_sync_s(results),
    }
    rest = iteration_time_s(results) - sum(shown.values())
    parts = xr.concat([*shown.values(), rest], dim="part")
    named = parts.assign_coords(part=list(_TIMER_COLOURS))
    return stacked_panels(named, _TIMER_COLOURS, results)


def split_breakdown(results: xr.Dataset) -> hv.Layout:
    """Draw iterations, mean over all stages, with messages apart from waiting."""
    if not has_runs(results):
        return not_run_here(results)
    return stacked_panels(pipeline_split_s(results), _SPLIT_COLOURS, results)


def node_utilisation(results: xr.Dataset) -> hv.Layout:
    """Draw the rate received by each node's NIC at the most GPUs, a panel per model.

    The rate is that of all iterations: bytes over time. Points are single iterations; the legend
    has the links' rates.
    """
    if not has_runs(results):
        return not_run_here(results)
    most = results.isel(gpus=-1, source=0)
    each = most["rx_iteration_full_scale_gbps"]
    # A mean of rates is weighted with the time of each.
    rates = each.weighted(most["iteration_time_s"].mean("rank").fillna(0)).mean("iteration")
    labels, limits = protocol_labels(results), link_rates_gbps(results)
    named = [
        f"{label}, link {limits[label]:.3g} Gbit/s" if label in limits else label
        for label in labels.values()
    ]
    drawn, names = [], model_names(results)
    for number, studied in enumerate(names):
        table = rates.sel(model=studied).to_series().unstack("protocol", sort=False).dropna()
        table = table[list(labels)].set_axis(named, axis=1)
        own = each.sel(model=studied, node=table.index)
        iterations = own.transpose("protocol", "node", "iteration").values
        table.index = [f"node {int(node)}" for node in table.index]
        drawn.append(
            bars(
                table,
                dict(zip(table.columns, map(protocol_colour, labels.values()), strict=True)),
                title=model_labels()[studied],
                ylabel="received, Gbit/s at full scale",
                legend=shows_legend(number, len(names)),
                stacked=False,
                iterations=list(iterations) if results.sizes["iteration"] > 1 else [],
            )
        )
    return panels(drawn)


def timeline(results: xr.Dataset) -> hv.core.Dimensioned:
    """Draw when each stage computes, waits in a call or has a message under way in one iteration.

    The iteration is one of the first model over the slowest protocol, at the most GPUs, up to the
    end of the drain.
    """
    if not has_runs(results):
        return not_run_here(results)
    if "call_start_s" not in results:
        return hv.Layout([hv.Text(0.5, 0.5, "no single messages")])
    cell = results.isel(source=0, model=0, protocol=-1, gpus=-1)
    begin = cell["iteration_start_s"].isel(iteration=0)
    computing = cell["phase_time_s"].isel(iteration=0).sel(phase=list(_BEFORE_DRAIN)).sum("phase")
    computed = {"stage": cell["rank"], "start_s": begin, "end_s": begin + computing}
    calls = _first_iteration(cell, "call").rename(columns={"rank": "stage"})
    messages = _first_iteration(cell, "message")
    boxes = [
        pd.DataFrame(computed).assign(kind="compute"),
        calls.assign(kind="wait"),
        messages.assign(stage=messages["sender"], kind="message"),
        messages.assign(stage=messages["receiver"], kind="message"),
    ]
    scale, origin = 1e3 / float(cell["time_scale"]), float(begin.min())
    table = pd.concat(boxes, ignore_index=True)
    for end in ("start", "end"):
        table[end] = scale * (table[f"{end}_s"] - origin)
    table["bottom"], table["top"] = table["stage"] - _LANE, table["stage"] + _LANE
    drawn = [
        hv.Rectangles(
            table[table["kind"] == kind], kdims=["start", "bottom", "end", "top"], label=kind
        ).opts(color=colour, **option(0, matplotlib="linewidth", bokeh="line_width"))
        for kind, colour in _STATE_COLOURS.items()
    ]
    label = model_labels()[cell["model"].item()]
    protocol = protocol_labels(results)[cell["protocol"].item()]
    overlay = hv.Overlay(drawn).opts(
        title=f"{label}, {protocol}", xlabel="time, ms at full scale", ylabel="rank"
    )
    size = options(
        matplotlib={"fig_size": 300, "aspect": 2.6}, bokeh={"width": 2 * WIDTH, "height": HEIGHT}
    )
    return overlay.opts(legend_position="right", **size)


def _first_iteration(cell: xr.Dataset, dim: str) -> pd.DataFrame:
    """Return messages or calls of the first recorded iteration, a column per variable."""
    names = [str(name) for name in cell.data_vars if str(name).startswith(f"{dim}_")]
    table = cell[names].to_dataframe()[names]
    table.columns = [name.removeprefix(f"{dim}_") for name in names]
    return table[table["iteration"] == 0]
