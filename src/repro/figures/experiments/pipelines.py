"""Figure 5 of the journal paper in two readings, and what is behind them.

Times are full-scale equivalents: testbed seconds divided by the configuration's time scale.
"""

import holoviews as hv
import pandas as pd
import xarray as xr

from repro.figures.experiments.scaling import protocol_colour
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
# Phases of a stage until it has nothing left to do but wait for the others.
_BEFORE_DRAIN = (
    "forward compute",
    "backward compute",
    "forward receive",
    "backward receive",
    "send",
)
_LANE = 0.35


def timer_breakdown(results: xr.Dataset) -> hv.Layout:
    """As the paper's timers have it, on the last stage: forward receive contains the fill, the
    embedding sync the drain (figure 5a-d)."""
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
    return stacked_panels(parts.assign_coords(part=list(_TIMER_COLOURS)), _TIMER_COLOURS)


def split_breakdown(results: xr.Dataset) -> hv.Layout:
    """The same iterations, mean over all stages: messages under way apart from waiting."""
    if not has_runs(results):
        return not_run_here(results)
    return stacked_panels(pipeline_split_s(results), _SPLIT_COLOURS)


def node_utilisation(results: xr.Dataset) -> hv.Layout:
    """Mean rate received by each node's NIC over an iteration, a panel per model, most GPUs."""
    if not has_runs(results):
        return not_run_here(results)
    rates = results["rx_iteration_full_scale_gbps"].isel(gpus=-1, source=0).mean("iteration")
    labels = protocol_labels(results)
    drawn, names = [], model_names(results)
    for number, studied in enumerate(names):
        table = rates.sel(model=studied).to_series().unstack("protocol", sort=False).dropna()
        table = table.rename(columns=labels)
        table.index = [f"node {int(node)}" for node in table.index]
        drawn.append(
            bars(
                table,
                {label: protocol_colour(label) for label in table.columns},
                title=model_labels()[studied],
                ylabel="received, Gbit/s at full scale",
                legend=shows_legend(number, len(names)),
                stacked=False,
            )
        )
    return panels(drawn)


def timeline(results: xr.Dataset) -> hv.core.Dimensioned:
    """What every stage does in one iteration: compute, wait in a call, or have a message under way.

    Of the first model and the slowest protocol, at the most GPUs, up to the drain's end.
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
    """Messages or calls of the first recorded iteration, a column per variable."""
    names = [str(name) for name in cell.data_vars if str(name).startswith(f"{dim}_")]
    table = cell[names].to_dataframe()[names]
    table.columns = [name.removeprefix(f"{dim}_") for name in names]
    return table[table["iteration"] == 0]
