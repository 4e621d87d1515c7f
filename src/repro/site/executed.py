"""Executed notebooks as pages: rendered as they are, never run again."""

import base64
import json
import re
from pathlib import Path

from repro.atomic import replace_text
from repro.figures.disk import reduced
from repro.figures.notebook import LOADS_SCRIPTS
from repro.paths import RESULTS
from repro.site.pages import toctree, write_page

# Holoviews shows pictures so.
_HTML, _PICTURE = "text/html", re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)")


def write_notebooks(stage: Path) -> None:
    """Copy `results/notebooks` without their own copies of scripts, and list them on one page."""
    folder = stage / "notebooks"
    folder.mkdir()
    names = []
    for path in sorted((RESULTS / "notebooks").glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if "outputs" in cell:
                # The page has the scripts already.
                cell["outputs"] = [
                    one for one in cell["outputs"] if one.get("metadata") != LOADS_SCRIPTS
                ]
                for one in cell["outputs"]:
                    _lighten(one.get("data", {}))
        replace_text(folder / path.name, json.dumps(notebook))
        names.append(path.stem)
    words = (
        "Each as it was executed by `make repro`, with its figures."
        if names
        else "None was executed yet: `make repro` does, and `jupyter lab notebooks/` opens them."
    )
    write_page(folder / "index.md", "Notebooks", words, toctree(names))


def _lighten(shown: dict[str, str | list[str]]) -> None:
    """Have the pictures that a cell shows in fewer bytes."""
    if _HTML in shown:
        shown[_HTML] = _PICTURE.sub(_reduced, "".join(shown[_HTML]))


def _reduced(found: re.Match[str]) -> str:
    return found[1] + base64.b64encode(reduced(base64.b64decode(found[2]))).decode()
