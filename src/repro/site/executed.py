"""Executed notebooks as pages: rendered as they are, never run again."""

import json
from pathlib import Path
from typing import Any

from panel.io.resources import CDN_DIST

from repro.atomic import replace_text
from repro.figures.notebook import LOADS_SCRIPTS
from repro.paths import RESULTS
from repro.site.pages import toctree, write_page

# What loads Bokeh, from the network or from inline copies: the page has it already. And what tells
# JupyterLab of a figure.
_LOADER = "application/vnd.holoviews_load.v0+json"
_PANEL = "../_static/bokeh/panel/"
_LAB = "application/vnd.holoviews_exec.v0+json"


def write_notebooks(stage: Path) -> None:
    """Copy `results/notebooks` without their own copies of scripts, and list them on one page."""
    folder = stage / "notebooks"
    folder.mkdir()
    names = []
    for path in sorted((RESULTS / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if "outputs" in cell:
                cell["outputs"] = [shown for one in cell["outputs"] if (shown := _shown(one))]
        replace_text(folder / path.name, json.dumps(notebook))
        names.append(path.stem)
    words = (
        "Each as it was executed by `make repro`, with its figures."
        if names
        else "None was executed yet: `make repro` does, and `jupyter lab notebooks/` opens them."
    )
    write_page(folder / "index.md", "Notebooks", words, toctree(names))


def _shown(output: dict[str, Any]) -> dict[str, Any] | None:
    """An output as the site shows it; None for what only loads scripts."""
    data = output.get("data", {})
    if _LOADER in data or output.get("metadata") == LOADS_SCRIPTS:
        return None
    data.pop(_LAB, None)
    if "text/html" in data:
        data["text/html"] = "".join(data["text/html"]).replace(CDN_DIST, _PANEL)
    return output
