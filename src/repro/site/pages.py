"""Functions that write pages of the site as MyST Markdown."""

from collections.abc import Iterable
from pathlib import Path

from repro.atomic import replace_text
from repro.paths import RESULTS


def write_page(path: Path, title: str, *blocks: str) -> None:
    """Write a page: its title and its blocks, with a blank line between them."""
    replace_text(path, "\n\n".join([f"# {title}", *blocks]) + "\n")


def toctree(names: Iterable[str], *options: str) -> str:
    """Return a Sphinx toctree of pages; empty without pages."""
    lines = [*(f":{option}" for option in options), "", *names]
    return directive("toctree", "", lines) if list(names) else ""


def directive(name: str, argument: str, lines: Iterable[str]) -> str:
    """Return a directive with its options and content."""
    return "\n".join([f"::::{{{name}}} {argument}".rstrip(), *lines, "::::"])


def raw(html: str) -> str:
    """Return a block of unchanged HTML."""
    return directive("raw", "html", ["", html])


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table with cell separators escaped."""
    lines = [header, ["---"] * len(list(header)), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def figure_image(name: str, alternative: str, caption: str) -> list[str]:
    """Return a figure's picture and caption for a page at the site's top; empty if not drawn."""
    if not (RESULTS / "figures" / f"{name}.svg").exists():
        return []
    source = f"_static/figures/{name}.svg"
    return [raw(f'<img class="headline" alt="{alternative}" src="{source}">'), caption]
