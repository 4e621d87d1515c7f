"""Digests of the code that decides a measurement, without its comments and docstrings."""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_RANKS = ("collectives", "launch/messages.py", "launch/ranks", "observe", "testbed")
# Modules and folders of the package that decide what is measured.
METHODS: Mapping[str, tuple[str, ...]] = {
    "collectives": (*_RANKS, "results/collectives.py"),
    "cpu": (
        "catalog/studies",
        "corpus/datasets.py",
        "corpus/t5.py",
        "experiments/machine",
        "logs/operator_trace.py",
        "observe/operator_trace.py",
        "train",
    ),
    "training": (
        *_RANKS,
        "catalog/parallel",
        "corpus/datasets.py",
        "corpus/t5.py",
        "results/communication.py",
        "results/outcome.py",
        "results/schema.py",
        "studies/compression/tables.py",
        "train",
    ),
}


@cache
def method_digest(name: str) -> str:
    """Return the SHA-256 digest of the code of one of `METHODS`.

    It is the same after an edit of comments, docstrings or layout.
    """
    digest = hashlib.sha256()
    for path in _modules(METHODS[name]):
        digest.update(f"{path.relative_to(_PACKAGE)}\n".encode())
        digest.update(normalised(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()


def normalised(source: str) -> str:
    """Return the syntax tree of a module as text, without docstrings and positions.

    Examples
    --------
    >>> normalised("x = 1  # one") == normalised("x = (1)")
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return ast.dump(tree)


def _modules(names: tuple[str, ...]) -> Iterator[Path]:
    for name in sorted(names):
        path = _PACKAGE / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
