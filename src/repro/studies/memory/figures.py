"""Memory of a training step: published and predicted, and its parts."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd

from repro.figures.palette import SKY_BLUE
from repro.figures.panels import (
    HEIGHT,
    LEGEND_WIDTH,
    MEMORY_COLOURS,
    WIDTH,
    limit_marks,
    options,
    panels,
)

_ROW_HEIGHT, _MARGIN = 30, 120


def published_and_predicted(memory: pd.DataFrame, savings: pd.DataFrame) -> hv.Layout:
    """Draw predicted memory as bars and published memory as marks.

    There is a panel for GiB of states and activations, and one for activations in percent of those
    with nothing saved.

    Parameters
    ----------
    memory, savings
        Output of `published_memory` and `published_savings` in
        `repro.studies.memory.predicted`.
    """
    part = memory.index.get_level_values("part")
    drawn = [
        _compared(memory[part == name].droplevel("part"), f"{name}, GiB")
        for name in ("states", "activations")
    ]
    some = savings[savings.index.get_level_values("mode") != "none"]
    return panels([*drawn, _compared(some, "activations of a layer, % of all")])


def parts(memory: pd.DataFrame, title: str, limit_gb: float | None = None) -> hv.Overlay:
    """Draw memory by part, a bar per row, the first on top; marks are the memory of a GPU."""
    shown = memory[list(MEMORY_COLOURS)][::-1]
    shown = shown.rename(columns=lambda name: name.replace("_", " ")).rename_axis("case")
    bars = shown.hvplot.barh(
        stacked=True,
        color=list(MEMORY_COLOURS.values()),
        title=f"{title}, GB (predicted; mark: the memory that the GPU has)",
        # Bars are horizontal; hvplot does not swap their labels.
        xlabel="",
        ylabel="",
        group_label="part",
        value_label="GB",
        legend="right",
        width=WIDTH + 2 * LEGEND_WIDTH,
        height=_MARGIN + _ROW_HEIGHT * len(shown),
    )
    if limit_gb is None:
        return hv.Overlay([bars])
    return bars * limit_marks(list(shown.index), [limit_gb] * len(shown), ("case", "GB"))


def _compared(rows: pd.DataFrame, label: str) -> hv.Overlay:
    names = [" ".join(map(str, index)) for index in rows.index]
    # Panels with one name for their values would share an axis.
    table = rows.set_axis(pd.Index(names, name="model and mode")).rename(
        columns={"predicted": label}
    )
    bars = table.hvplot.bar(
        y=label,
        color=SKY_BLUE,
        xlabel="",
        ylabel=f"{label} (bar: predicted, mark: published)",
        rot=60,
        width=WIDTH,
        height=HEIGHT,
    )
    marks = hv.Scatter((names, table.published.to_list()), "model and mode", label)
    large = options(matplotlib={"marker": "D", "s": 40}, bokeh={"marker": "diamond", "size": 12})
    return bars * marks.opts(color="black", **large)
