"""A single GPU: operators and a decoder, predicted over measured; attention by length."""

from collections.abc import Mapping

import holoviews as hv
import pandas as pd
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import options, panel_size, panels

# Matmuls first; attention by implementation.
_OPERATORS = {
    "gemm, bf16": BLUE,
    "gemm, fp8": SKY_BLUE,
    "attention_prefill, flash": ORANGE,
    "attention_prefill, cudnn": VERMILION,
    "attention_decode, flash": GREEN,
    "attention_decode, cudnn": PURPLE,
}
_PASSES = {
    "tokens, bf16": BLUE,
    "tokens, fp8": SKY_BLUE,
    "prompts, bf16": VERMILION,
    "prompts, fp8": ORANGE,
}
_WORK = {"products": BLUE, "attention": VERMILION, "element-wise": GREEN, "casts": PURPLE}
_SERIES = (BLUE, VERMILION, GREEN, PURPLE)
_GREY = "#CCCCCC"


def operator_ratios(errors: pd.DataFrame) -> hv.Layout:
    """Draw predicted over measured time of each operator by its time, a panel per GPU."""
    series = errors.kind + ", " + errors.variant
    return _ratios(errors, series, _OPERATORS, "us", ["gpu"], "microseconds (measured), {gpu}")


def pass_ratios(errors: pd.DataFrame) -> hv.Layout:
    """Draw predicted over measured time of each pass, a panel per GPU and model."""
    series = errors.phase + "s, " + errors.weights
    label = "ms (measured), {model}, {gpu}"
    return _ratios(errors, series, _PASSES, "ms", ["gpu", "model"], label)


def part_ratios(parts: pd.DataFrame) -> hv.Layout:
    """Draw predicted over measured time of each part of passes, a panel per GPU and phase."""
    label = "ms (measured) of {phase}s, {gpu}"
    return _ratios(parts, parts.part, _WORK, "ms", ["gpu", "phase"], label)


def _ratios(
    times: pd.DataFrame,
    series: pd.Series,
    colours: Mapping[str, str],
    unit: str,
    by: list[str],
    label: str,
) -> hv.Layout:
    """Draw a panel for each value of `by`, which `label` names, with a colour per series."""
    measured = times[f"measured_{unit}"]
    points = times.assign(series=series, time=measured, ratio=times[f"predicted_{unit}"] / measured)
    return panels(
        [
            _ratio_panel(found, colours, label.format(**dict(zip(by, key, strict=True))))
            for key, found in points.groupby(by, sort=False)
        ]
    )


def _ratio_panel(points: pd.DataFrame, colours: Mapping[str, str], label: str) -> hv.Overlay:
    drawn = [hv.HLine(1.0).opts(color=BLACK)]
    for name, colour in colours.items():
        found = points[points.series == name]
        drawn.append(_points(found[["time", "ratio"]], name, colour))
    return hv.Overlay(drawn).opts(
        xlabel=label,
        ylabel="predicted / measured",
        legend_position="bottom_left",
        **panel_size(logx=True, logy=True),
    )


def clocks(iterations: pd.DataFrame) -> hv.Layout:
    """Draw times of host and GPU and the predicted iteration over the measured one.

    There is a panel per GPU and a mark per row of `iterations`; an iteration's name has its
    milliseconds.
    """
    drawn = [_clocks(found, str(gpu)) for gpu, found in iterations.groupby("gpu")]
    # Names below a panel are long.
    return panels(drawn).cols(1).opts(**options(matplotlib={"vspace": 0.75}, bokeh={}))


def _clocks(iterations: pd.DataFrame, gpu: str) -> hv.Overlay:
    names = iterations.model + ", " + iterations.samples.astype(str)
    of_tables = iterations.model.eq("dlrm")
    names = names.where(~of_tables, names + ", tables " + iterations.tables.astype(str))
    names += [f" ({ms:.3g} ms)" for ms in iterations.measured_ms]
    drawn: list[hv.Element] = [
        hv.HLine(level).opts(color=colour)
        for level, colour in ((0.95, _GREY), (1.0, BLACK), (1.05, _GREY))
    ]
    for label, column, colour in (
        ("the host alone", "host_ms", SKY_BLUE),
        ("the GPU alone", "device_ms", GREEN),
        ("both: predicted", "predicted_ms", VERMILION),
    ):
        ratio = pd.DataFrame(
            {"iteration": names, "ratio": iterations[column] / iterations.measured_ms}
        )
        drawn.append(_points(ratio, label, colour))
    return hv.Overlay(drawn).opts(
        xrotation=60,
        ylim=(0, None),
        xlabel="model and micro batch (measured iteration)",
        ylabel="predicted / measured",
        title=f"Iterations of a GPU replayed from its operators, {gpu}",
        legend_position="right",
        **options(
            matplotlib={"fig_inches": (10, 5), "aspect": 1.8}, bokeh={"width": 860, "height": 480}
        ),
    )


def by_attention(measured: xr.Dataset) -> hv.Layout:
    """Draw median iteration time and peak memory by sequence length and attention.

    All values are measured. Missing lengths ran out of memory.
    """
    values = {
        "ms per iteration (measured, median)": 1e3
        * measured["iteration_time_s"].median("iteration"),
        "peak memory in GB (measured)": measured["peak_memory_bytes"] / 1e9,
    }
    drawn = []
    for label, value in values.items():
        elements = []
        for name, colour in zip(measured["attention"].values, _SERIES, strict=False):
            table = value.sel(attention=name).to_series().dropna().reset_index()
            elements += [_line(table, str(name), colour), _points(table, str(name), colour)]
        drawn.append(_panel(elements, "tokens per sequence, 8192 per micro batch", label))
    return panels(drawn)


def _line(table: pd.DataFrame, label: str, colour: str) -> hv.Curve:
    return hv.Curve(table, *table.columns, label=label).opts(color=colour)


def _points(table: pd.DataFrame, label: str, colour: str) -> hv.Scatter:
    return hv.Scatter(table, *table.columns, label=label).opts(
        color=colour, alpha=0.7, **options(matplotlib={"s": 16}, bokeh={"size": 5})
    )


def _panel(elements: list[hv.Element], xlabel: str, ylabel: str) -> hv.Overlay:
    # Axes are not shared, because quantities differ in size.
    return hv.Overlay(elements).opts(
        xlabel=xlabel,
        ylabel=ylabel,
        ylim=(0, None),
        padding=0.05,
        legend_position="top_left",
        **panel_size(),
        **options(matplotlib={"axiswise": True}, bokeh={"axiswise": True, "shared_axes": False}),
    )
