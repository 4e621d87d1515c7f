"""Reference pages: the rooms of the package, the command line, and every field of `params/`."""

import importlib
import re
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from repro.atomic import replace_text
from repro.paths import ROOT
from repro.site.pages import toctree, write_page
from repro.site.parameters import write_parameters

_PROGRAM = "repro"
_IMPORT = re.compile(r"from (repro\.\w+\.[\w.]+) import")


def write_reference(stage: Path, command_line: typer.Context) -> None:
    """Write `reference/`: a page for each room, one for the command line, one for parameters."""
    folder = stage / "reference"
    _write_command_line(folder / "command-line.md", command_line)
    write_parameters(folder / "params.md")
    rooms: dict[str, list[str]] = {}
    for module in _called():
        rooms.setdefault(module.split(".")[1], []).append(module)
    for room, modules in rooms.items():
        _write_room(room, modules, folder / f"{room}.rst")
    write_page(
        folder / "index.md",
        "Reference",
        "The command line, what `params/` may say, and the modules whose functions the notebooks "
        "and documents call. Data flows one way through the package's rooms: from the catalog to "
        "figures and claims.",
        toctree(["command-line", "params", *rooms], "maxdepth: 1"),
    )


def _called() -> list[str]:
    """The modules of this package that notebooks and documents import from."""
    sources = (*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "docs").glob("*.md"))
    return sorted({name for path in sources for name in _IMPORT.findall(path.read_text("utf-8"))})


def _write_room(room: str, modules: list[str], path: Path) -> None:
    """A room's modules with their public functions and classes, in the form autodoc reads."""
    package = importlib.import_module(f"{_PROGRAM}.{room}")
    parts = [_heading(package.__name__, "="), package.__doc__ or ""]
    for name in modules:
        parts.append(_heading(name, "-"))
        parts.append(f".. automodule:: {name}\n   :members:\n")
    replace_text(path, "\n".join(parts))


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def _write_command_line(path: Path, context: typer.Context) -> None:
    """What `repro --help` says of every command."""
    text = get_docs_for_click(
        obj=context.command, ctx=context, name=_PROGRAM, title="The command line"
    )
    replace_text(path, text)
