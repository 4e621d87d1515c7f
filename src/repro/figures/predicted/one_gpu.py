"""A single GPU: time and memory against the micro batch, measured points over predictions."""

from collections.abc import Mapping

import holoviews as hv
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import Gpu
from repro.figures.palette import BLUE, GREEN, GREY, VERMILION
from repro.figures.panels import (
    model_labels,
    model_names,
    not_run_here,
    options,
    panel_size,
    panels,
)
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.results.store import has_runs

_PHASE_COLOURS = {
    "forward compute": BLUE,
    "backward compute": VERMILION,
    "optimizer": GREEN,
}
_MEMORY_COLOURS = {"tensors": BLUE}
_LIMIT_COLOUR = GREY
_SIZE = "micro_batch_size"
# Space at both ends of an axis, so that the first and the last point are not cut.
_MARGIN = 1.3


def time_per_sequence(predicted: xr.Dataset, measured: xr.Dataset) -> hv.Layout:
    """Draw forward, backward and optimizer time per sequence by micro batch, a panel per model.

    Parameters
    ----------
    predicted : Dataset
        Output of `repro.predict.explore.experiments.predicted`, on one GPU: the lines.
    measured : Dataset
        Dataset of the schema, on one GPU: the points, means over iterations. Without variables,
        there are none.
    """
    if not has_runs(predicted):
        return not_run_here(predicted)
    lines = {name: _milliseconds(one) for name, one in _by_model(predicted).items()}
    points = {name: _milliseconds(one) for name, one in _by_model(measured).items()}
    return _panels(lines, points, _PHASE_COLOURS, "ms per sequence")


def peak_memory(predicted: xr.Dataset, measured: xr.Dataset, gpu: Gpu) -> hv.Layout:
    """Draw the peak memory of tensors by micro batch, a panel per model.

    The grey line is the GPU's memory for tensors: predictions beyond it do not run.

    Parameters
    ----------
    predicted, measured : Dataset
        As in `time_per_sequence`.
    gpu : Gpu
        GPU of both.
    """
    if not has_runs(predicted):
        return not_run_here(predicted)
    lines = {
        name: _gigabytes(one["memory_bytes"] - FRAMEWORK_BYTES)
        for name, one in _by_model(predicted).items()
    }
    points = {
        name: _gigabytes(one["peak_memory_bytes"].max("rank"))
        for name, one in _by_model(measured).items()
    }
    limit = hv.HLine((gpu.memory_bytes - FRAMEWORK_BYTES) / 1e9).opts(color=_LIMIT_COLOUR)
    label = f"peak memory on {gpu.label}, GB"
    return _panels(lines, points, _MEMORY_COLOURS, label, limit)


def _by_model(results: xr.Dataset) -> Mapping[str, xr.Dataset]:
    """Return runs on one GPU by model, of the first source and protocol; empty without any."""
    if not has_runs(results):
        return {}
    one = results.sel(gpus=1).isel(source=0, protocol=0)
    return {name: one.sel(model=name) for name in model_names(one)}


def _milliseconds(one: xr.Dataset) -> pd.DataFrame:
    """Return milliseconds of phases by micro batch, where they ran."""
    seconds = one["phase_time_s"].mean(["iteration", "rank"]) / one["time_scale"]
    chosen = 1e3 * seconds.sel(phase=list(_PHASE_COLOURS)) / one[_SIZE]
    return chosen.to_series().unstack("phase", sort=False).dropna()


def _gigabytes(taken: xr.DataArray) -> pd.DataFrame:
    return (taken / 1e9).to_series().to_frame("tensors").dropna()


def _panels(
    lines: Mapping[str, pd.DataFrame],
    points: Mapping[str, pd.DataFrame],
    colours: Mapping[str, str],
    label: str,
    *more: hv.Element,
) -> hv.Layout:
    """Draw a panel per model; the last panel of the first row has the legend for all."""
    drawn = []
    for number, (name, table) in enumerate(lines.items()):
        elements = [
            element
            for column, colour in colours.items()
            for element in _series(table, points.get(name), column, colour)
        ]
        first, last = table.index.min(), table.index.max()
        legend = number == min(1, len(lines) - 1)
        drawn.append(
            hv.Overlay([*elements, *more]).opts(
                title=model_labels()[name],
                xlabel="micro batch, sequences",
                ylabel=label,
                xlim=(first / _MARGIN, last * _MARGIN),
                xticks=[(int(batch), str(batch)) for batch in table.index],
                show_legend=legend,
                legend_position="right",
                **panel_size(logx=True, logy=True),
            )
        )
    return panels(drawn)


def _series(
    line: pd.DataFrame, points: pd.DataFrame | None, column: str, colour: str
) -> list[hv.Element]:
    """Draw predictions as a line and measurements as points of the same colour."""
    frame = pd.DataFrame({"batch": line.index, "value": line[column].to_numpy()})
    elements: list[hv.Element] = [
        hv.Curve(frame, "batch", "value", label=f"{column}, predicted").opts(color=colour)
    ]
    if points is not None and len(points):
        frame = pd.DataFrame({"batch": points.index, "value": points[column].to_numpy()})
        elements.append(
            hv.Scatter(frame, "batch", "value", label=f"{column}, measured").opts(
                color=colour, **options(matplotlib={"s": 30}, bokeh={"size": 7})
            )
        )
    return elements
