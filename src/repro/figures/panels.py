"""Parts that several figures share: stacked bars, panels per model, lines and labels."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import holoviews as hv
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.path import Path

from repro.catalog.models.trainable import trainable_models
from repro.catalog.systems.protocols import read_transports
from repro.figures.palette import BLACK, BLUE, GREEN, GREY, SKY_BLUE, VERMILION, YELLOW
from repro.results.metrics import interval, iteration_time_s
from repro.results.store import why_not_run

WIDTH, HEIGHT, LEGEND_WIDTH = 460, 320, 150
MODEL_COLOURS = (BLUE, SKY_BLUE, VERMILION, GREEN)
# Parts of a GPU's memory, in the order of stacks.
MEMORY_COLOURS = {
    "weights": BLUE,
    "gradients": VERMILION,
    "optimizer_states": GREEN,
    "activations": SKY_BLUE,
    "logits": YELLOW,
    "framework": GREY,
}
_FIGURE_SIZE = 190
# Thin rectangle: matplotlib warns about its "|", which has no area.
_UPRIGHT = Path([(-0.16, -1), (0.16, -1), (0.16, 1), (-0.16, 1), (-0.16, -1)])
# Width of a figure in characters.
_LINE = 50


def stacked_panels(
    times_s: xr.DataArray,
    colours: Mapping[str, str],
    results: xr.Dataset,
) -> hv.Layout:
    """Draw stacked bars of an iteration's parts by GPUs and protocol, a panel per model.

    Several iterations are drawn as points, with the 95 % interval of their mean as a line.

    Parameters
    ----------
    times_s
        Seconds at full scale (source, model, protocol, gpus, part), one source.
    colours
        Colours by part, in the order of the stack; other parts are not drawn.
    results
        Dataset that the times are mean iterations of.
    """
    several = results.sizes["iteration"] > 1
    both_ends = interval(results, iteration_time_s) if several else ()
    every = per_iteration(results, iteration_time_s)
    drawn, names = [], model_names(times_s)
    for number, name in enumerate(names):
        table = _by_run(times_s.sel(model=name)).unstack("part")[list(colours)].dropna()
        ends = [_by_run(end.sel(model=name))[table.index] for end in both_ends]
        points = _by_run(every.sel(model=name)).unstack("iteration").loc[table.index]
        labels = protocol_labels(times_s)
        table.index = [f"{gpus} {labels[protocol]}" for gpus, protocol in table.index]
        drawn.append(
            bars(
                table,
                colours,
                title=model_labels()[name],
                ylabel="iteration, ms at full scale",
                legend=shows_legend(number, len(names)),
                interval=ends,
                iterations=[points.to_numpy()] if several else [],
            )
        )
    return panels(drawn)


def per_iteration(
    results: xr.Dataset, statistic: Callable[[xr.Dataset], xr.DataArray]
) -> xr.DataArray:
    """Compute a statistic of each iteration, along `iteration`."""
    numbers = range(results.sizes["iteration"])
    each = [statistic(results.isel(iteration=[number])) for number in numbers]
    return xr.concat(each, dim="iteration")


def _by_run(values_s: xr.DataArray) -> pd.Series:
    """Return milliseconds by GPUs and protocol (rows), and by part or iteration (columns)."""
    order = [dim for dim in ("gpus", "protocol", "part", "iteration") if dim in values_s.dims]
    whole = (1e3 * values_s).squeeze("source", drop=True).reset_coords(drop=True)
    return whole.transpose(*order).to_series()


def shows_legend(number: int, of: int) -> bool:
    """Return whether a panel has a legend.

    On paper the last panel of a row has one for all; on a page each panel has its own, which hides
    and shows marks.
    """
    return number == min(1, of - 1) or hv.Store.current_backend == "bokeh"


def bars(
    table: pd.DataFrame,
    colours: Mapping[str, str],
    *,
    title: str,
    ylabel: str,
    legend: bool,
    stacked: bool = True,
    interval: Sequence[pd.Series] = (),
    published: Sequence[tuple[object, float]] | None = None,
    iterations: Sequence[np.ndarray] = (),
) -> hv.Overlay:
    """Draw a table as bars: a place on the axis per row, a colour per column.

    Parameters
    ----------
    interval
        Both ends of the rows' sums, drawn as lines.
    published
        Rows and values that a document states, drawn as marks; an empty list adds only the entry of
        the legend, for another panel.
    iterations
        Values (row of the table, iteration), drawn as points from left to right over their bar: one
        array for stacks, else one for each column of the table.
    """
    places = np.arange(len(table))
    floor, width = np.zeros(len(table)), 0.8 if stacked else 0.8 / len(table.columns)
    drawn = []
    for number, part in enumerate(map(str, table.columns)):
        values = table[part]
        left = places - 0.4 + (0 if stacked else number * width)
        boxes = {"left": left, "bottom": floor, "right": left + width, "top": floor + values}
        shown = pd.DataFrame({**boxes, "run": table.index, "value": values}).reset_index(drop=True)
        drawn.append(
            hv.Rectangles(shown, kdims=list(boxes), vdims=["run", "value"], label=part).opts(
                **options(
                    matplotlib={"facecolor": colours[part], "edgecolor": "white"},
                    bokeh={
                        "fill_color": colours[part],
                        "line_color": "white",
                        "tools": ["hover"],
                        "hover_tooltips": [("", "@run"), (part, "@value{0.0}")],
                    },
                )
            )
        )
        floor = floor + (values.to_numpy() if stacked else 0)
    if interval:
        low, high = (end.to_numpy() for end in interval)
        below, above = (np.maximum(distance, 0) for distance in (floor - low, high - floor))
        drawn.append(hv.ErrorBars((places, floor, below, above)))
    for number, every in enumerate(iterations):
        within = number + np.linspace(0.15, 0.85, every.shape[1])
        across = (places[:, None] - 0.4 + width * within).ravel()
        drawn.append(iteration_points((across, every.ravel()), "at", "iteration"))
    if published is not None:
        marks = [(table.index.get_loc(row), value) for row, value in published]
        drawn.append(published_marks(marks))
    return hv.Overlay(drawn).opts(
        title=title,
        xlabel="",
        ylabel=ylabel,
        xticks=list(enumerate(map(str, table.index))),
        xlim=(-0.6, len(table) - 0.4),
        ylim=(0, None),
        xrotation=60 if max(map(len, map(str, table.index))) > 4 else 0,
        show_legend=legend,
        legend_position="right",
        **panel_size(),
    )


def line(frame: pd.DataFrame, x: str, y: str, label: str, colour: str) -> list[hv.Element]:
    """Draw points and the line that joins them; pointing at a point shows all columns."""
    values = [y, *frame.columns.drop([x, y])]
    return [
        hv.Curve(frame, x, y, label=label).opts(color=colour),
        hv.Scatter(frame, x, values, label=label).opts(color=colour, **points_of_a_line()),
    ]


def line_of_iterations(
    results: xr.Dataset,
    statistic: Callable[[xr.Dataset], xr.DataArray],
    x: str,
    label: str,
    colour: str,
) -> list[hv.Element]:
    """Draw a statistic of results that differ in `x` only as a line.

    Its points have the seconds of an iteration; small points are single iterations.
    """

    def frame(values: xr.Dataset) -> pd.DataFrame:
        others = [dim for dim in values.dims if dim not in (x, "iteration")]
        return values.squeeze(others, drop=True).to_dataframe().dropna().reset_index()

    both = {"value": statistic(results), "iteration_s": iteration_time_s(results)}
    points = frame(xr.Dataset({"value": per_iteration(results, statistic)}))
    drawn = line(frame(xr.Dataset(both)), x, "value", label, colour)
    return [iteration_points(points, x, "value", colour), *drawn]


def iteration_points(data: object, x: str, y: str | list[str], colour: str = BLACK) -> hv.Scatter:
    """Draw single iterations (or seeds, or models) as small, translucent points."""
    return hv.Scatter(data, x, y).opts(
        color=colour,
        alpha=0.5,
        **options(matplotlib={"s": 10}, bokeh={"size": 3, "tools": ["hover"]}),
    )


def cumulative(values: pd.Series, label: str, colour: str) -> hv.Curve:
    """Draw the percentage of values that are at most each gain, as steps."""
    gains = np.sort(values.dropna())
    share = 100 * np.arange(1, len(gains) + 1) / len(gains)
    steps = hv.Curve((gains, share), "gain", "share", label=label)
    return steps.opts(color=colour, interpolation="steps-post")


def bounds(values: Mapping[str, float], label: str) -> list[hv.Element]:
    """Draw upper bounds as level lines, by colour.

    Their dashes and dots differ from those of all measurements. The legend has one entry for all
    bounds.
    """
    dashes = options(matplotlib={"linestyle": "-."}, bokeh={"line_dash": "dashdot"})
    lines = [hv.HLine(value).opts(color=colour, **dashes) for colour, value in values.items()]
    entry = hv.Segments([(np.nan,) * 4], label=label).opts(color=BLACK, **dashes)
    return [*lines, entry] if lines else []


def limit_marks(names: list[str], values: Sequence[float], dims: tuple[str, str]) -> hv.Scatter:
    """Draw an upright line at a limit on each level bar, as long as the bar is thick."""
    return hv.Scatter((names, values), *dims).opts(
        color=BLACK,
        **options(
            matplotlib={"marker": _UPRIGHT, "s": 250},
            bokeh={"marker": "dash", "angle": 90, "size": 20, "line_width": 3},
        ),
    )


def points_of_a_line() -> dict[str, object]:
    """Return options of points that a line joins; pointing at a point shows its values."""
    return options(matplotlib={"s": 20}, bokeh={"size": 6, "tools": ["hover"]})


def published_marks(marks: Sequence[tuple[object, float]]) -> hv.Scatter:
    """Draw values that a document states as marks that are not joined to other values.

    Without any values, the legend still has their entry.
    """
    return hv.Scatter(marks or [(np.nan, np.nan)], "at", "published", label="published").opts(
        color="black",
        **options(
            matplotlib={"marker": "D", "s": 45, "edgecolors": "white"},
            bokeh={"marker": "diamond", "size": 14, "line_color": "white", "tools": ["hover"]},
        ),
    )


def panels(drawn: list[hv.Element]) -> hv.Layout:
    """Arrange panels two by two."""
    layout = hv.Layout(drawn).cols(2)
    if hv.Store.current_backend == "matplotlib":
        layout.opts(fig_size=_FIGURE_SIZE, sublabel_format="", backend="matplotlib")
    return layout


def option(value: object, *, matplotlib: str, bokeh: str) -> dict[str, object]:
    """Return an option under the name that the chosen backend has for it."""
    return options(matplotlib={matplotlib: value}, bokeh={bokeh: value})


def options(*, matplotlib: dict[str, object], bokeh: dict[str, object]) -> dict[str, object]:
    """Return the options of the chosen backend."""
    return matplotlib if hv.Store.current_backend == "matplotlib" else bokeh


def dashed() -> dict[str, object]:
    """Return options of a dashed line."""
    return options(matplotlib={"linestyle": "--"}, bokeh={"line_dash": "dashed"})


def panel_size(*, logx: bool = False, logy: bool = False) -> dict[str, object]:
    """Return options for a panel's axes and size; its legend is to the right."""
    # HoloViews scales an axis by natural logarithms, matplotlib by those to the base of ten.
    stretched = math.log(10) ** (logx - logy)
    size = options(
        matplotlib={"aspect": stretched * WIDTH / HEIGHT},
        bokeh={"width": WIDTH + LEGEND_WIDTH, "height": HEIGHT},
    )
    return {"logx": logx, "logy": logy, **size}


def not_run_here(results: xr.Dataset) -> hv.Layout:
    """Return the reasons why nothing was run, in place of a figure."""
    reasons = textwrap.fill(f"not run here: {why_not_run(results)}", _LINE)
    return hv.Layout([hv.Text(0.5, 0.5, reasons).opts(xaxis=None, yaxis=None)])


def model_names(results: xr.Dataset | xr.DataArray) -> list[str]:
    """Return the models of results, in their order."""
    return [str(name) for name in results["model"].values]


def model_labels() -> dict[str, str]:
    """Return labels of models by their names in datasets."""
    return {name: entry.label for name, entry in trainable_models().items()}


def protocol_labels(results: xr.Dataset | xr.DataArray) -> dict[str, str]:
    """Return labels of the protocols that were run, by their names in datasets.

    A protocol without a label, such as the links of a single machine, keeps its name.
    """
    known = {name: entry.label for name, entry in read_transports().items()}
    return {str(name): known.get(str(name), str(name)) for name in results["protocol"].values}
