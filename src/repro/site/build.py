"""Builder of the site: it gathers the pages in `build/site` and runs Sphinx on them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import bokeh
import typer
from sphinx.cmd.build import build_main

from repro.atomic import temporary_sibling
from repro.errors import ReproError
from repro.paths import RESULTS, ROOT
from repro.site.claims import write_claims
from repro.site.compressed_scripts import compress_script
from repro.site.executed import write_notebooks
from repro.site.gallery import write_figures
from repro.site.home import write_documents, write_home
from repro.site.measured import write_provenance
from repro.site.reference import write_reference
from repro.site.sphinx import BOKEH
from repro.site.what_if import write_what_if

SITE = RESULTS / "site"
_PAGES = ROOT / "build" / "site"


def _write_bokeh(pages: Path) -> None:
    """Copy Bokeh's script, so that pages load nothing from the network."""
    script = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    text = compress_script(script.read_text(encoding="utf-8"))
    (pages / "_static" / BOKEH).write_text(text, encoding="utf-8")


_WRITERS: tuple[Callable[[Path], None], ...] = (
    _write_bokeh,
    write_home,
    write_claims,
    write_figures,
    write_what_if,
    write_documents,
    write_notebooks,
    write_provenance,
)


def build_site(command_line: typer.Context) -> Path:
    """Build the site from scratch in `results/site`, which is replaced only on success.

    Parameters
    ----------
    command_line
        Command line that the reference page describes.

    Returns
    -------
    Path
        First page of the site.

    Raises
    ------
    ReproError
        Sphinx reported a problem, such as a broken link; it printed the page and the line.
    """
    shutil.rmtree(_PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "_static", _PAGES / "_static")
    shutil.copy(ROOT / "docs" / "conf.py", _PAGES)
    for write in _WRITERS:
        write(_PAGES)
    write_reference(_PAGES, command_line)
    # Sphinx writes notebooks' outputs next to the site, hence a folder around it.
    folder = temporary_sibling(SITE)
    built = folder / SITE.name
    try:
        _run_sphinx(built)
        shutil.rmtree(SITE, ignore_errors=True)
        os.replace(built, SITE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return SITE / "index.html"


def _run_sphinx(built: Path) -> None:
    doctrees = _PAGES / ".doctrees"
    options = ["-b", "html", "-q", "-W", "--keep-going", "-j", "auto", "-d", str(doctrees)]
    if build_main([*options, str(_PAGES), str(built)]) != 0:
        raise ReproError(
            f"{_PAGES}: Sphinx reported the problems above; fix: edit the sources of these pages"
        )
    for sources in ("_sources", ".doctrees"):
        shutil.rmtree(built / sources, ignore_errors=True)
    macros = built / "_static" / "webpack-macros.html"
    for leftover in (built / ".buildinfo", built / "objects.inv", macros, *built.rglob("*.map")):
        leftover.unlink(missing_ok=True)
