"""Reference pages: Python packages, the command line, and every field of `params/`."""

import importlib
import re
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

from repro.atomic import replace_text
from repro.paths import ROOT
from repro.site.parameters import write_parameters

_PROGRAM = "repro"
_IMPORT = re.compile(r"from (repro\.\w+\.[\w.]+) import")


def write_reference(pages: Path, command_line: typer.Context) -> None:
    """Write `reference/`: a page per package, one for the command line, one for parameters."""
    folder = pages / "reference"
    _write_command_line(folder / "command-line.md", command_line)
    write_parameters(folder / "params.md")
    packages: dict[str, list[str]] = {}
    for module in _documented_modules():
        packages.setdefault(module.split(".")[1], []).append(module)
    for name, modules in packages.items():
        _write_package(name, modules, folder / f"{_PROGRAM}.{name}.rst")


def _documented_modules() -> list[str]:
    """Return the modules of this package that notebooks and documents import from."""
    sources = (*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "docs").rglob("*.md"))
    return sorted({name for path in sources for name in _IMPORT.findall(path.read_text("utf-8"))})


def _write_package(name: str, modules: list[str], path: Path) -> None:
    """Write a package's modules with their public functions and classes, for Sphinx autodoc."""
    package = importlib.import_module(f"{_PROGRAM}.{name}")
    parts = [_heading(package.__name__, "="), package.__doc__ or ""]
    for module in modules:
        parts.append(_heading(module, "-"))
        parts.append(f".. automodule:: {module}\n   :members:\n")
    replace_text(path, "\n".join(parts))


def _heading(text: str, underline: str) -> str:
    return f"{text}\n{underline * len(text)}\n"


def _write_command_line(path: Path, context: typer.Context) -> None:
    """Write the help of every command."""
    text = get_docs_for_click(
        obj=context.command,
        ctx=context,
        name=_PROGRAM,
        title="Command line: all options",
    )
    replace_text(path, text)
