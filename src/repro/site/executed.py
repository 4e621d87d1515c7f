"""Pages of executed notebooks, rendered from their outputs; Sphinx does not run them again."""

import base64
import json
import re
from pathlib import Path

from repro.atomic import replace_text
from repro.figures.export import reduced
from repro.figures.notebook import LOADS_SCRIPTS
from repro.paths import RESULTS, ROOT
from repro.site.pages import toctree

_HTML = "text/html"
# Form in which HoloViews embeds pictures.
_PICTURE = re.compile(r"(data:image/png;base64,)([A-Za-z0-9+/=]+)")


def write_notebooks(pages: Path) -> None:
    """Copy notebooks without Bokeh's scripts, and list them below `notebooks/README.md`.

    `results/notebooks` has the executed ones; the others are pages without results.
    """
    folder = pages / "notebooks"
    folder.mkdir()
    executed = {path.name: path for path in (RESULTS / "notebooks").glob("*.ipynb")}
    sources = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    entries = []
    for name, path in sorted((sources | executed).items()):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            if "outputs" in cell:
                # The page loads Bokeh itself.
                cell["outputs"] = [
                    output for output in cell["outputs"] if output.get("metadata") != LOADS_SCRIPTS
                ]
                for output in cell["outputs"]:
                    _reduce_pictures(output.get("data", {}))
        replace_text(folder / name, json.dumps(notebook))
        title = "".join(notebook["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
        entries.append(path.stem if name in sources else f"{title} ({path.stem}) <{path.stem}>")
    blocks = [
        (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8"),
        "## All notebooks",
        *([] if executed else ["None was executed yet: run `make repro`."]),
        toctree(entries, "maxdepth: 1"),
    ]
    replace_text(folder / "README.md", "\n\n".join(blocks) + "\n")


def _reduce_pictures(data: dict[str, str | list[str]]) -> None:
    """Replace the pictures in an output's HTML with smaller ones."""
    if _HTML in data:
        data[_HTML] = _PICTURE.sub(_reduced, "".join(data[_HTML]))


def _reduced(found: re.Match[str]) -> str:
    return found[1] + base64.b64encode(reduced(base64.b64decode(found[2]))).decode()
