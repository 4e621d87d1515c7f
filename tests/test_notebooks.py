"""Notebooks: committed without outputs, prose and calls only, parameters where papermill looks."""

import ast
from pathlib import Path

import nbformat
import pytest

from repro.paths import ROOT

_NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_SHARED = ("source", "protocol", "models", "gpus", "profile", "output")


def _read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_the_papers_sections_have_their_notebooks() -> None:
    assert {path.stem for path in _NOTEBOOKS} >= {
        "strong_scaling",
        "weak_scaling",
        "similarity",
        "model_parallelism",
        "micro_batches",
        "batch_sweeps",
        "cluster_b",
        "gpt350m",
        "collectives",
        "communication",
        "hierarchical_zero",
        "compression",
        "one_gpu",
        "claims",
        "testbed_prediction",
        "what_if",
        "hardware_generations",
        "memory",
        "inference",
        "operators",
        "open_models",
        "your_job",
        "my_cluster",
    }


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path: Path) -> None:
    for cell in _read(path).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_no_notebook_defines_anything(path: Path) -> None:
    for cell in _read(path).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)


@pytest.mark.parametrize("path", _NOTEBOOKS, ids=lambda path: path.stem)
def test_papermill_finds_the_kernel_without_being_told(path: Path) -> None:
    assert _read(path).metadata.kernelspec.name == "python3"


# What an experiment's notebook takes beside the parameters of all.
_OWN: dict[str, set[str]] = {
    "strong_scaling": set(),
    "weak_scaling": set(),
    "model_parallelism": {"micro_batch_size", "pipeline_parallel"},
    "micro_batches": set(),
    "batch_sweeps": {"parallelism"},
    "cluster_b": set(),
    "gpt350m": set(),
}


@pytest.mark.parametrize("name", list(_OWN))
def test_experiments_take_the_same_parameters(name: str) -> None:
    cells = [
        cell
        for cell in _read(ROOT / "notebooks" / f"{name}.ipynb").cells
        if "parameters" in cell.metadata.get("tags", [])
    ]
    assert len(cells) == 1
    names = [node.targets[0].id for node in ast.parse(cells[0].source).body]  # type: ignore[attr-defined]
    assert tuple(n for n in names if n not in _OWN[name]) == _SHARED
    assert set(names) - set(_SHARED) == _OWN[name]
