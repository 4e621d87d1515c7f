"""Pages of figures: a gallery, and a page per figure with pictures, data and zoom."""

import html
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from repro.figures.experiments.every import INDEX
from repro.figures.export import panels_html
from repro.paths import RESULTS
from repro.site.measured import missing
from repro.site.pages import raw, toctree, write_page

FIGURES = RESULTS / "figures"
_SUFFIXES = (".svg", ".png", ".csv")
_INTRODUCTION = (
    "Figures include published values where a paper states them. Each page has an interactive "
    "figure, its picture (SVG, PNG) and its data (CSV). Numbers in brackets are those of IEEE "
    "Micro 2024 or of the GPT-350M report."
)


@dataclass(frozen=True)
class SavedFigure:
    """Entry of `results/figures/index.json`."""

    name: str
    title: str
    experiment: str
    caption: str


def read_figures() -> list[SavedFigure]:
    """Read the list of saved figures; empty before `repro figures`."""
    index = FIGURES / INDEX
    if not index.exists():
        return []
    return [SavedFigure(**entry) for entry in json.loads(index.read_text(encoding="utf-8"))]


def write_figures(pages: Path) -> None:
    """Write the gallery and a page per figure; pictures and tables go to `_static/figures`."""
    folder, files = pages / "figures", pages / "_static" / "figures"
    files.mkdir(parents=True)
    figures = read_figures()
    groups: dict[str, list[SavedFigure]] = {}
    for one in figures:
        for suffix in _SUFFIXES:
            shutil.copy(FIGURES / f"{one.name}{suffix}", files)
        _write_figure(one, folder / f"{one.name}.md")
        groups.setdefault(one.title.partition(":")[0], []).append(one)
    blocks = [_INTRODUCTION if figures else "No figures yet: run `repro figures`."]
    blocks += [f"- {line}" for line in missing()]
    for title, group in groups.items():
        cards = "\n".join(map(_card, group))
        blocks += [f"## {title}", raw(f'<div class="gallery">{cards}</div>')]
    names = [one.name for one in figures]
    write_page(folder / "index.md", "Figures", *blocks, toctree(names, "hidden: "))


def _write_figure(one: SavedFigure, path: Path) -> None:
    notebook = RESULTS / "notebooks" / f"{one.experiment}.ipynb"
    files = ", ".join(
        f'<a href="../_static/figures/{one.name}{suffix}" download>{suffix[1:].upper()}</a>'
        for suffix in _SUFFIXES
    )
    lines = [f"<p>Download: {files}</p>"]
    if notebook.exists():
        lines.append(
            f'<p>Method and all results: <a href="../notebooks/{one.experiment}.html">notebook '
            f"{one.experiment}</a></p>"
        )
    write_page(path, one.title, one.caption, raw(interactive(one)), raw("\n".join(lines)))


def interactive(one: SavedFigure) -> str:
    """Return HTML and a script with which Bokeh draws a figure; panels wrap on narrow pages."""
    drawn = json.loads((FIGURES / f"{one.name}.json").read_text(encoding="utf-8"))
    places = [f'<div id="{place}"></div>' for place in drawn["item"]["roots"].values()]
    panels = panels_html(places, drawn["titles"], drawn["widths"])
    # An unescaped `</` would end the script.
    documents, item = (
        json.dumps(drawn[part]).replace("</", "<\\/") for part in ("documents", "item")
    )
    picture = f'<img alt="{html.escape(one.title)}" src="../_static/figures/{one.name}.svg">'
    return (
        f"{panels}\n<noscript>{picture}</noscript>\n"
        f"<script>Bokeh.embed.embed_items({documents}, [{item}])</script>"
    )


def _card(one: SavedFigure) -> str:
    return (
        f'<a class="card" href="{one.name}.html">'
        f'<img loading="lazy" alt="" src="../_static/figures/{one.name}.svg">'
        f"<strong>{html.escape(one.title)}</strong><span>{html.escape(one.caption)}</span></a>"
    )
