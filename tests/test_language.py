"""Documents, docstrings, comments and messages use plain words (CONTRIBUTING.md, "Language")."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.paths import ROOT

# This package is rewritten next, together with its names: an edit there costs a measurement.
_LATER = ("predict",)
_PYTHON = sorted(
    path
    for path in [*(ROOT / "src" / "repro").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]
    if path.relative_to(ROOT / "src" / "repro" if "src" in path.parts else ROOT).parts[0]
    not in _LATER
)
_PROSE = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "data/*/README.md",
        "notebooks/*.md",
        "notebooks/*.ipynb",
    )
    for path in ROOT.glob(pattern)
)
# A sentence names its subject first: noun clauses and fragments have to be decoded.
_OPENING = re.compile(
    r"(?:^|[.:!?] )(What|Whatever|Whoever|Of|Those|Where it is|To [a-z]+,)\b(?![^.]*\?)"
)
_BANNED = re.compile(
    r"\b(mend(s|ed|ing)?|anew|whoever|obituar\w+|bur(y|ied|ies)|spoil\w*|hand(s|ed)? on"
    r"|g[ia]v(e|es|ing) way|cannot be had|let pass|lets? expect|what replicas share"
    r"|none is better than|computed again|last words|goes on where it|stands? in \[)\b",
    re.IGNORECASE,
)


def _found(text: str, openings: bool) -> list[str]:
    flat = " ".join(text.split())
    found = [match[0] for match in _BANNED.finditer(flat)]
    return found + ([match[1] for match in _OPENING.finditer(flat)] if openings else [])


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Blocks of comment lines, each with the line it begins at."""
    block: list[str] = []
    begins = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield begins, " ".join(block)
            block = []
        if not block:
            begins = line
        block.append(token.string.lstrip("# "))
        last = line
    if block:
        yield begins, " ".join(block)


def _python_problems(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    docstrings: set[ast.expr] = set()
    problems = []
    for node in ast.walk(tree := ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for word in _found(node.value, openings=node in docstrings):
                problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: {word}")
    for line, text in _comments(source):
        problems += [f"{path.relative_to(ROOT)}:{line}: {word}" for word in _found(text, True)]
    return problems


def _prose(path: Path) -> str:
    """Text of a page without code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```|`[^`\n]*`|^    [^\n]*$", "", text, flags=re.S | re.M)


def test_docstrings_comments_and_messages_are_plain() -> None:
    assert [problem for path in _PYTHON for problem in _python_problems(path)] == []


@pytest.mark.parametrize("path", _PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain(path: Path) -> None:
    paragraphs = re.split(r"\n\s*\n|^[-*|#] ?", _prose(path), flags=re.M)
    assert [word for text in paragraphs for word in _found(text, openings=True)] == []
