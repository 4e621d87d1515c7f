"""What an executed notebook keeps: figures that ask for nothing, folded datasets, no progress."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from repro.figures.notebook import LOADS_SCRIPTS

pytestmark = pytest.mark.slow

_CELLS = """
from repro.catalog.studies.selection import select
from repro.experiments.static_sources import load_results
from repro.figures.notebook import show
from repro.figures.experiments.scaling import breakdown
from repro.launch.execution import progress
show("bokeh")
---
with progress([], "a title") as bar:
    bar.say("some words")
results = load_results(select("weak_scaling", "predicted", models="bert-large", gpus=8))
results
---
breakdown(results)
---
show("matplotlib")
breakdown(results)
"""
_ASKED_FOR = re.compile(r"""(?:src|href)=["']https?://|https?://cdn\.|\.js["']""")


@pytest.fixture(scope="module")
def outputs() -> list[list[nbformat.NotebookNode]]:
    """The outputs of each cell."""
    cells = [nbformat.v4.new_code_cell(source) for source in _CELLS.split("---\n")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


def test_scripts_come_once_and_figures_ask_for_nothing(
    outputs: list[list[nbformat.NotebookNode]],
) -> None:
    (scripts,), _, (bokeh,), (matplotlib,) = outputs
    assert len(scripts.data["text/html"]) > 1e6
    assert scripts.metadata == LOADS_SCRIPTS
    assert not re.search(r"<script[^>]+src=", scripts.data["text/html"])
    for figure in (bokeh, matplotlib):
        html = figure.data["text/html"]
        assert len(html) < 1e6
        assert not _ASKED_FOR.search(html)
    assert "gradient sync" in bokeh.data["text/html"]
    assert "<img" in matplotlib.data["text/html"] or "<svg" in matplotlib.data["text/html"]


def test_progress_leaves_nothing_and_provenance_is_a_table(
    outputs: list[list[nbformat.NotebookNode]],
) -> None:
    (dataset,) = outputs[1]
    html = dataset.data["text/html"]
    assert "a title" not in html
    for field in ("commit", "versions", "machine"):
        assert f">{field}</th>" in html
    # Folded: neither attributes nor the parameters' JSON are spread out.
    assert "{&quot;" not in html and '{"' not in html
    assert not re.search(r"<input[^>]*section-summary-in[^>]*checked", html)
