"""Figures on disk: vector and pixel images, tables of values, interactive JSON."""

import html
import json
import math
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import holoviews as hv
import hvplot
import matplotlib as mpl
import pandas as pd
from bokeh.document import Document
from bokeh.embed.util import standalone_docs_json_and_render_items
from bokeh.models import GridPlot, Plot
from bokeh.models.annotations import Legend, Title
from PIL import Image

from repro.atomic import replace_text, replacing
from repro.figures.panels import LEGEND_WIDTH

# No time of drawing, so that the same data give the same bytes.
_METADATA: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".png": {}}
_LEGEND_ROW, _NARROW = 24, 500
_WRITTEN: Any = {
    "svg.hashsalt": "repro",
    "svg.fonttype": "none",
    "figure.dpi": 100,
    # Texts in an SVG list all fonts, eleven by default.
    "font.sans-serif": ["DejaVu Sans"],
}
# Coordinates of an SVG in points, with more digits than hundredths.
_PLACES, _FINER = re.compile(r' (d|x|y)="[^"]*"'), re.compile(r"(\.\d\d)\d+")
Draw = Callable[[], hv.core.Dimensioned]


def save_figure(draw: Draw, path: Path) -> list[Path]:
    """Draw a figure for matplotlib and write `path` with the suffixes .svg, .png and .csv.

    `draw` is called after the backend is chosen, since hvplot fixes a figure's backend when it
    draws it. The same data give the same bytes. The table has a row per mark: its panel, its kind,
    its name in the legend, and the values on the axes.
    """
    hvplot.extension("matplotlib", logo=False)
    figure = draw()
    # `hv.render` would draw the figure twice, to see whether it moves.
    picture = hv.renderer("matplotlib").get_plot(figure).state
    written = []
    with mpl.rc_context(_WRITTEN):
        for suffix in (".svg", ".png"):
            target = path.with_suffix(suffix)
            with replacing(target) as temporary:
                picture.savefig(
                    temporary, format=suffix[1:], metadata=_METADATA[suffix], bbox_inches="tight"
                )
                reduce = reduced if suffix == ".png" else _reduced_svg
                temporary.write_bytes(reduce(temporary.read_bytes()))
            written.append(target)
    table = path.with_suffix(".csv")
    replace_text(table, shown_values(figure).to_csv(index=False, float_format="%.6g"))
    return [*written, table]


def reduced(picture: bytes) -> bytes:
    """Reduce a PNG to its 256 main colours, which takes a third of the bytes."""
    written = BytesIO()
    with Image.open(BytesIO(picture)) as opened:
        opened.convert("RGB").quantize(256).save(written, format="png", optimize=True)
    return written.getvalue()


def _reduced_svg(picture: bytes) -> bytes:
    """Round coordinates to a hundredth of a point, which takes four fifths of the bytes."""
    return _PLACES.sub(lambda place: _FINER.sub(r"\1", place[0]), picture.decode()).encode()


def save_interactive(draw: Draw, path: Path) -> Path:
    """Draw a figure for Bokeh and write it as JSON, `path` with the suffix .json.

    Each panel is a root of one document: a page may wrap them, and their axes still move together.
    Pointing at a mark shows its values; a click on an entry of the legend hides its marks.
    """
    hvplot.extension("bokeh", logo=False)
    plots, titles = separate_panels(draw())
    # A document searches its models at every change, so panels are completed first.
    page = Document()
    for plot in plots:
        page.add_root(plot)
    documents, (item,) = standalone_docs_json_and_render_items(plots)
    target = path.with_suffix(".json")
    shown = {
        "documents": documents,
        "item": item.to_json(),
        "titles": titles,
        "widths": [plot.width for plot in plots],
    }
    replace_text(target, json.dumps(shown))
    return target


def separate_panels(figure: hv.core.Dimensioned) -> tuple[list[Plot], list[str]]:
    """Draw a figure for Bokeh as panels that shrink with their column, and return their titles.

    Bokeh cuts off long titles, HTML wraps them. Legends move below their panels.
    """
    drawn = hv.render(figure, backend="bokeh")
    children = [one for one, *_ in drawn.children] if isinstance(drawn, GridPlot) else [drawn]
    plots = [one for one in children if isinstance(one, Plot)]
    titles = [str(p.title.text) if isinstance(p.title, Title) else "" for p in plots]
    for plot in plots:
        plot.title = None
        plot.toolbar.logo = None
        for legend in plot.legend:
            _under(plot, legend)
        plot.update(sizing_mode="stretch_width", max_width=plot.width, toolbar_location="above")
    return plots, titles


def panels_html(places: Iterable[str], titles: Iterable[str], widths: Iterable[int]) -> str:
    """Return HTML of panels that wrap: their titles, and the places where Bokeh draws them.

    Panels wider than 500 px have long labels, so pages may give them a minimum width and scroll.
    """
    panels = "".join(
        f'<div class="panel{" wide-panel" * (width > _NARROW)}" '
        f'style="flex: 1 1 24rem; max-width: {width}px">'
        f'<p class="panel-title">{html.escape(title)}</p>{place}</div>'
        for place, title, width in zip(places, titles, widths, strict=True)
    )
    style = "display: flex; flex-wrap: wrap; gap: 1rem"
    return f'<div class="panels" style="{style}" tabindex="0">{panels}</div>'


def _under(plot: Plot, legend: Legend) -> None:
    """Move a legend below its plot, which stays as wide on a narrow page; a click hides."""
    if legend in plot.right:
        plot.width = (plot.width or 0) - LEGEND_WIDTH
    for place in (plot.left, plot.right, plot.above, plot.below, plot.center):
        if legend in place:
            place.remove(legend)
    legend.update(ncols=2, border_line_alpha=0, orientation="horizontal", location="left")
    legend.update(label_text_font_size="11px", margin=0, padding=0, spacing=2)
    # A renderer whose colour depends on a group cannot hide single groups.
    legend.click_policy = "hide" if len(legend.items) > 1 else "none"
    plot.add_layout(legend, "below")
    plot.height = (plot.height or 0) + _LEGEND_ROW * math.ceil(len(legend.items) / 2)


def shown_values(figure: hv.core.Dimensioned) -> pd.DataFrame:
    """Return the values that a figure shows, one row per mark."""
    layout = figure if isinstance(figure, hv.Layout) else hv.Layout([figure])
    frames = []
    for panel in layout:
        title = hv.Store.lookup_options("matplotlib", panel, "plot").kwargs.get("title", "")
        for element in panel.traverse(lambda one: one, [hv.Element]):
            frame = element.dframe() if element.kdims else pd.DataFrame()
            frames.append(
                frame.assign(panel=title, mark=type(element).__name__, name=element.label)
            )
    table: pd.DataFrame = pd.concat(frames, ignore_index=True)
    first = ["panel", "mark", "name"]
    return table[[*first, *(column for column in table if column not in first)]]
