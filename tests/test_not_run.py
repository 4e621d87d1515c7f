"""Without the testbed everything else runs, and reports what is missing and why."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repro.catalog.studies.collectives import read_collectives_sweep
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.paths import ROOT
from repro.results.store import not_run, write_dataset

pytestmark = pytest.mark.slow

# Notebooks that only predict are the same everywhere, and the pipeline runs them.
_PREDICTED = {
    "hardware_generations",
    "memory",
    "my_cluster",
    "open_models",
    "what_if",
    "your_job",
}
_NOTEBOOKS = sorted({path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} - _PREDICTED)
_REASON = "no namespaces for user 1000"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the project with results that contain only the reason why they are missing."""
    folder = tmp_path_factory.mktemp("a project") / "repro"
    for name in (
        *("src", "params", "notebooks", "data/published", "data/reference"),
        "tests/logs/samples",
    ):
        shutil.copytree(ROOT / name, folder / name)
    clusters = read_collectives_sweep().clusters
    for name in (*EXPERIMENTS, *(f"collectives-{c}" for c in clusters), "compute", "sensitivity"):
        write_dataset(not_run({"testbed": _REASON}), folder / "results" / f"{name}.nc")
    return folder


def _run(project: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def errors(project: Path) -> dict[str, list[str]]:
    """Errors of each notebook where the kernel refuses namespaces."""
    here = Path(__file__).parent
    result = _run(
        project,
        *(sys.executable, str(here / "without_namespaces.py")),
        *(sys.executable, str(here / "run_notebooks.py")),
        *(f"notebooks/{name}.ipynb" for name in _NOTEBOOKS),
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("name", _NOTEBOOKS)
def test_a_notebook_shows_what_there_is(errors: dict[str, list[str]], name: str) -> None:
    assert errors[name] == []


def test_commands_do_what_they_can(project: Path) -> None:
    repro = str(Path(sys.executable).with_name("repro"))
    judged = _run(project, repro, "claims", "--json")
    assert judged.returncode == 0, judged.stderr
    # As the pipeline's stage keeps it.
    (project / "results" / "claims.json").write_text(judged.stdout)
    for command in ("figures", "claims"):
        result = _run(project, repro, command)
        assert result.returncode == 0, result.stderr
