"""Gather the site's pages and have Sphinx make one folder of them."""

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
from repro.site.compressed_scripts import packed
from repro.site.executed import write_notebooks
from repro.site.gallery import write_figures
from repro.site.home import write_home
from repro.site.measured import write_provenance
from repro.site.reference import write_reference
from repro.site.sphinx import BOKEH
from repro.site.what_if import write_what_if

SITE = RESULTS / "site"
_STAGE = ROOT / "build" / "site"
# What the reader of the repository finds at its top, where it exists.
_TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def _write_bokeh(stage: Path) -> None:
    """Copy what draws figures: nothing is loaded from elsewhere."""
    script = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    text = packed(script.read_text(encoding="utf-8"))
    (stage / "_static" / BOKEH).write_text(text, encoding="utf-8")


_WRITERS: tuple[Callable[[Path], None], ...] = (
    _write_bokeh,
    write_home,
    write_claims,
    write_figures,
    write_what_if,
    write_notebooks,
    write_provenance,
)


def build_site(command_line: typer.Context) -> Path:
    """Build the site anew in `results/site`, which exists whole or not at all.

    Parameters
    ----------
    command_line
        What its reference describes.

    Returns
    -------
    Path
        Its first page.

    Raises
    ------
    ReproError
        Sphinx found something wrong, such as a link that leads nowhere; it has said what.
    """
    shutil.rmtree(_STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "docs", _STAGE, ignore=shutil.ignore_patterns("*.md", "*.def"))
    shutil.copytree(ROOT / "docs", _STAGE / "docs", ignore=shutil.ignore_patterns("_*", "*.py"))
    for name in _TOP:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, _STAGE)
    for write in _WRITERS:
        write(_STAGE)
    write_reference(_STAGE, command_line)
    # In a folder of its own: notebooks' outputs are left beside the site.
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
    doctrees = _STAGE / ".doctrees"
    options = ["-b", "html", "-q", "-W", "--keep-going", "-j", "auto", "-d", str(doctrees)]
    if build_main([*options, str(_STAGE), str(built)]) != 0:
        raise ReproError(f"{_STAGE}: the site was not built; mend the pages named above")
    for sources in ("_sources", ".doctrees"):
        shutil.rmtree(built / sources, ignore_errors=True)
    macros = built / "_static" / "webpack-macros.html"
    for leftover in (built / ".buildinfo", built / "objects.inv", macros, *built.rglob("*.map")):
        leftover.unlink(missing_ok=True)
