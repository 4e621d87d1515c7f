"""A GPU by itself: operators and a decoder, measured beside predictions; attention by length."""

import holoviews as hv
import pandas as pd
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import options, panel_size, panels

# Products first; attention by who computes it.
_COLOURS = {
    ("gemm", "bf16"): BLUE,
    ("gemm", "fp8"): SKY_BLUE,
    ("attention_prefill", "flash"): ORANGE,
    ("attention_prefill", "cudnn"): VERMILION,
    ("attention_decode", "flash"): GREEN,
    ("attention_decode", "cudnn"): PURPLE,
}
_SERIES = (BLUE, VERMILION, GREEN, PURPLE)
_GREY = "#CCCCCC"
_PHASES = {"token": "tokens that are cached", "prompt": "tokens of a prompt"}


def operator_ratios(errors: pd.DataFrame) -> hv.Layout:
    """Predicted over measured time of each operator of `operator_errors`, by how long it takes, a
    panel a GPU."""
    return panels([_ratios(found, str(gpu)) for gpu, found in errors.groupby("gpu")])


def _ratios(errors: pd.DataFrame, gpu: str) -> hv.Overlay:
    drawn = [hv.HLine(1.0).opts(color=BLACK)]
    for (kind, variant), colour in _COLOURS.items():
        found = errors[(errors.kind == kind) & (errors.variant == variant)]
        ratio = found.assign(ratio=found.predicted_us / found.measured_us)
        drawn.append(_points(ratio[["measured_us", "ratio"]], f"{kind}, {variant}", colour))
    return hv.Overlay(drawn).opts(
        logx=True,
        logy=True,
        xlabel=f"microseconds (measured), {gpu}",
        ylabel="predicted / measured",
        legend_position="bottom_left",
        **panel_size(),
    )


def clocks(iterations: pd.DataFrame) -> hv.Layout:
    """What the host launches and what the GPU works by itself, and what both make of an iteration,
    over what it was measured to take, of each row of `gpu_iterations`, a panel a GPU."""
    drawn = [_clocks(found, str(gpu)) for gpu, found in iterations.groupby("gpu")]
    # Names below a panel are long.
    return panels(drawn).cols(1).opts(**options(matplotlib={"vspace": 0.75}, bokeh={}))


def _clocks(iterations: pd.DataFrame, gpu: str) -> hv.Overlay:
    names = iterations.model + ", " + iterations.samples.astype(str)
    of_tables = iterations.model.eq("dlrm")
    names = names.where(~of_tables, names + ", tables " + iterations.tables.astype(str))
    drawn: list[hv.Element] = [
        hv.HLine(level).opts(color=colour)
        for level, colour in ((0.95, _GREY), (1.0, BLACK), (1.05, _GREY))
    ]
    for label, column, colour in (
        ("the host alone", "host_ms", SKY_BLUE),
        ("the GPU alone", "gpu_ms", GREEN),
        ("both: predicted", "predicted_ms", VERMILION),
    ):
        ratio = pd.DataFrame(
            {"iteration": names, "ratio": iterations[column] / iterations.measured_ms}
        )
        drawn.append(_points(ratio, label, colour))
    return hv.Overlay(drawn).opts(
        xrotation=60,
        ylim=(0, None),
        xlabel="model and micro batch",
        ylabel="predicted / measured",
        title=f"Iterations of a GPU timed again from its operators, {gpu}",
        legend_position="right",
        **options(
            matplotlib={"fig_inches": (10, 5), "aspect": 1.8}, bokeh={"width": 860, "height": 480}
        ),
    )


def decoding_times(errors: pd.DataFrame) -> hv.Layout:
    """Passes of `decoding_errors` of some GPUs by tokens, a panel a GPU and phase: lines predicted,
    points measured."""
    drawn = []
    for (gpu, phase), rows in errors.groupby(["gpu", "phase"], sort=False):
        elements = []
        for (batch, found), colour in zip(rows.groupby("batch"), _SERIES, strict=False):
            name = f"batch {batch}"
            axes = ["tokens", f"{phase}_ms"]
            predicted = found[["tokens", "predicted_ms"]].set_axis(axes, axis=1)
            measured = found[["tokens", "measured_ms"]].set_axis(axes, axis=1)
            elements += [_line(predicted, name, colour), _points(measured, name, colour)]
        label = f"{_PHASES[str(phase)]}, {gpu}"
        drawn.append(_panel(elements, label, "ms (lines predicted, points measured)"))
    return panels(drawn)


def by_attention(measured: xr.Dataset) -> hv.Layout:
    """Iteration time and peak memory by sequence length and attention, all measured; what is
    missing had no memory."""
    values = {
        "ms an iteration (measured)": 1e3 * measured["iteration_time_s"].median("iteration"),
        "peak memory in GB (measured)": measured["peak_memory_bytes"] / 1e9,
    }
    drawn = []
    for label, value in values.items():
        elements = []
        for name, colour in zip(measured["attention"].values, _SERIES, strict=False):
            table = value.sel(attention=name).to_series().dropna().reset_index()
            elements += [_line(table, str(name), colour), _points(table, str(name), colour)]
        drawn.append(_panel(elements, "tokens a sequence, 8192 a micro batch", label))
    return panels(drawn)


def _line(table: pd.DataFrame, label: str, colour: str) -> hv.Curve:
    return hv.Curve(table, *table.columns, label=label).opts(color=colour)


def _points(table: pd.DataFrame, label: str, colour: str) -> hv.Scatter:
    return hv.Scatter(table, *table.columns, label=label).opts(
        color=colour, alpha=0.7, **options(matplotlib={"s": 16}, bokeh={"size": 5})
    )


def _panel(elements: list[hv.Element], xlabel: str, ylabel: str) -> hv.Overlay:
    # Panels' own axes: what they show has not the same size.
    return hv.Overlay(elements).opts(
        xlabel=xlabel,
        ylabel=ylabel,
        ylim=(0, None),
        padding=0.05,
        legend_position="top_left",
        **panel_size(),
        **options(matplotlib={"axiswise": True}, bokeh={"axiswise": True, "shared_axes": False}),
    )
