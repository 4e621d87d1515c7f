"""The scripts that figures need, copied from their packages: nothing is loaded from elsewhere."""

import shutil
from pathlib import Path

import bokeh
import panel

from repro.site.sphinx import BOKEH


def write_scripts(stage: Path) -> None:
    """Copy Bokeh's and Panel's scripts to `_static/bokeh`, and the styles that Panel links to."""
    folders = (
        Path(bokeh.__file__).parent / "server" / "static" / "js",
        Path(panel.__file__).parent / "dist",
    )
    target = stage / "_static" / "bokeh"
    target.mkdir(parents=True)
    for name in BOKEH:
        (source,) = (folder / name for folder in folders if (folder / name).exists())
        shutil.copy(source, target)
    for styles in ("css", "bundled/theme"):
        shutil.copytree(folders[1] / styles, target / "panel" / styles)
