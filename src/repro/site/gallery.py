"""All figures on one page, and a page for each: to zoom into, as pictures, and as a table."""

import html
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from repro.figures.experiments.every import INDEX
from repro.paths import RESULTS
from repro.site.measured import missing
from repro.site.pages import raw, toctree, write_page

FIGURES = RESULTS / "figures"
_SUFFIXES = (".svg", ".png", ".csv")
_NARROW = 500
_WORDS = (
    "Published values are drawn in wherever a document states one. Each figure is there to zoom "
    "into, as SVG and PNG, and as a table (CSV). `figure-3a-d` is named for the figure of IEEE "
    "Micro 2024 that it reproduces, `gpt350m-figure-1` for that of the GPT-350M report."
)


@dataclass(frozen=True)
class Shown:
    """A figure that was drawn, as `results/figures/index.json` has it."""

    name: str
    experiment: str
    caption: str


def read_figures() -> list[Shown]:
    """All that were drawn; none before `repro figures`."""
    index = FIGURES / INDEX
    if not index.exists():
        return []
    return [Shown(**entry) for entry in json.loads(index.read_text(encoding="utf-8"))]


def write_figures(stage: Path) -> None:
    """Write the gallery and a page per figure; pictures and tables go to `_static/figures`."""
    folder, files = stage / "figures", stage / "_static" / "figures"
    files.mkdir(parents=True)
    figures = read_figures()
    for one in figures:
        for suffix in _SUFFIXES:
            shutil.copy(FIGURES / f"{one.name}{suffix}", files)
        _write_one(one, folder / f"{one.name}.md")
    blocks = [_WORDS] if figures else ["No figure was drawn yet: `repro figures` draws them."]
    blocks += [f"- {line}" for line in missing()]
    by_experiment: dict[str, list[Shown]] = {}
    for one in figures:
        by_experiment.setdefault(one.experiment, []).append(one)
    for experiment, own in by_experiment.items():
        cards = "\n".join(_card(one) for one in own)
        title = experiment.replace("_", " ")
        blocks += [f"## {title[0].upper()}{title[1:]}", raw(f'<div class="gallery">{cards}</div>')]
    names = [one.name for one in figures]
    write_page(folder / "index.md", "Figures", *blocks, toctree(names, "hidden: "))


def _write_one(one: Shown, path: Path) -> None:
    notebook = RESULTS / "notebooks" / f"{one.experiment}.ipynb"
    files = ", ".join(
        f'<a href="../_static/figures/{one.name}{suffix}" download>{suffix[1:].upper()}</a>'
        for suffix in _SUFFIXES
    )
    lines = [f"<p>Download: {files}</p>"]
    if notebook.exists():
        lines.append(
            f'<p>How it was measured: <a href="../notebooks/{one.experiment}.html">the notebook '
            f"{one.experiment}</a></p>"
        )
    write_page(path, one.name, one.caption, raw(interactive(one.name)), raw("\n".join(lines)))


def interactive(name: str) -> str:
    """A figure that Bokeh draws where the page stands, a panel beside the other as it is wide."""
    drawn = json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))
    places = "".join(
        f'<div class="{_panel(width)}" id="{place}" style="max-width: {width}px"></div>'
        for place, width in zip(drawn["item"]["roots"].values(), drawn["widths"], strict=True)
    )
    # `</` would end the script that holds it.
    documents, item = (
        json.dumps(drawn[part]).replace("</", "<\\/") for part in ("documents", "item")
    )
    return (
        f'<div class="panels" tabindex="0" role="region" aria-label="{name}">{places}</div>\n'
        f'<noscript><img alt="{name}" src="../_static/figures/{name}.svg"></noscript>\n'
        f"<script>Bokeh.embed.embed_items({documents}, [{item}])</script>"
    )


def _panel(width: int) -> str:
    """Names beside the axis take much of a figure that is wide: it scrolls on a narrow page."""
    return "panel wide-panel" if width > _NARROW else "panel"


def _card(one: Shown) -> str:
    return (
        f'<a class="card" href="{one.name}.html">'
        f'<img loading="lazy" alt="" src="../_static/figures/{one.name}.svg">'
        f"<strong>{one.name}</strong><span>{html.escape(one.caption)}</span></a>"
    )
