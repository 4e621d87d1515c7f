"""Every function and class that the documents name has an example in its docstring, which runs."""

import doctest
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from repro.paths import ROOT

_PAGES = [path for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern)]
_IMPORT = re.compile(r"^from (repro[\w.]*) import (\w+(?:, \w+)*)$", re.M)
_NAMED = re.compile(r"`(repro(?:\.\w+)+)\.(\w+)`")
_ADDED = ("pingpong", "link_rates")  # modules that CONTRIBUTING.md adds


def _named() -> Iterator[tuple[str, Callable[..., Any]]]:
    found: set[tuple[str, str]] = set()
    for page in _PAGES:
        text = page.read_text(encoding="utf-8")
        for module, names in _IMPORT.findall(text):
            if not any(added in module for added in _ADDED):
                found |= {(module, name) for name in names.split(", ")}
        found |= set(_NAMED.findall(text))
    for module, name in sorted(found):
        path = f"{module}.{name}"
        thing = getattr(importlib.import_module(module), name, None)
        thing = thing or importlib.import_module(path)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield path, thing


@pytest.mark.parametrize("thing", [pytest.param(thing, id=name) for name, thing in _named()])
def test_has_an_example_that_runs(thing: Callable[..., Any]) -> None:
    module = inspect.getmodule(thing)
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(thing) or "", dict(vars(module)), thing.__name__, None, 0
    )
    assert example.examples
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert result.failed == 0
