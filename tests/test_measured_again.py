"""What is measured again after a change: what it depends on, and nothing else (DVC's own graph)."""

import os
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml
from dvc.repo import Repo
from made_up import made_up_computing

from repro.catalog.models.papers import read_models
from repro.experiments.computing import compute_path
from repro.paths import ROOT
from repro.results.store import write_dataset

pytestmark = pytest.mark.slow

_MEASURING = ("compute", "experiment", "losses")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which every stage's outputs are there and up to date."""
    folder = tmp_path_factory.mktemp("graph") / "repro"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("src", "params", "notebooks", "docs", "data/measured", "data/published"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("dvc.yaml", ".dvcignore", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    with chdir(folder):
        repo = Repo.init(no_scm=True)
        for stage in repo.index.stages:
            for out in stage.outs:
                path = Path(out.fs_path)
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    path.write_text(f"{path.name}\n")
        _repro(folder, "method")
        repo.commit(force=True)
    return folder


def _invalid(project: Path) -> set[str]:
    """The measuring stages that DVC would run."""
    with chdir(project):
        return {name for name in Repo().status() if name.startswith(_MEASURING)}


def _measured_again(project: Path, *touched: str, more: str) -> set[str]:
    """The measuring stages that more text in each of some files invalidates."""
    before = {project / name: (project / name).read_text(encoding="utf-8") for name in touched}
    for path, text in before.items():
        path.write_text(text + more, encoding="utf-8")
    try:
        _repro(project, "method")
        return _invalid(project)
    finally:
        for path, text in before.items():
            path.write_text(text, encoding="utf-8")
        _repro(project, "method")


def test_nothing_is_measured_again_without_a_change(project: Path) -> None:
    assert _invalid(project) == set()


def test_what_decides_no_measurement_invalidates_none(project: Path) -> None:
    touched = (
        "src/repro/doctor.py",
        "src/repro/cli/measuring.py",
        "src/repro/figures/export.py",
        "src/repro/claims/tables.py",
        "src/repro/predict/explore/jobs/plans.py",
        "src/repro/predict/calibration/step_fitting.py",
        "src/repro/predict/step/layers.py",
        "src/repro/launch/nodes/step.py",
        "src/repro/launch/journal.py",
        "src/repro/experiments/on_testbed.py",
        "params/protocols.yaml",
    )
    assert _measured_again(project, *touched, more="# More.\nMORE = 1\n") == set()


def test_a_comment_in_what_ranks_do_is_not_measured_again(project: Path) -> None:
    touched = ("src/repro/train/run.py", "src/repro/testbed/links.py")
    assert _measured_again(project, *touched, more="# A comment.\n") == set()


def test_what_ranks_do_is_measured_again(project: Path) -> None:
    more = "MORE = 1\n"
    trained = _measured_again(project, "src/repro/train/run.py", more=more)
    sweeps = {f"experiment@collectives-{name}" for name in ("pinnacles", "big-red-200")}
    assert {name.partition("@")[0] for name in trained} == set(_MEASURING)
    assert len(trained) == 1 + 12 + 1
    assert _measured_again(project, "src/repro/testbed/links.py", more=more) == trained | sweeps


def test_another_rate_of_tcp_changes_only_what_runs_over_tcp(project: Path) -> None:
    write_dataset(_computing(), project / "results" / compute_path().name)
    before = _resolved(project)
    path = project / "params" / "protocols.yaml"
    text = path.read_text()
    protocols = yaml.safe_load(text)
    protocols["tcp"]["effective_gbps"] *= 1.1
    path.write_text(yaml.safe_dump(protocols))
    after = _resolved(project)
    path.write_text(text)
    changed = {name for name, value in after.items() if value != before[name]}
    assert changed == {
        "strong_scaling",
        "weak_scaling",
        "model_parallelism",
        "collectives-pinnacles",
        "compression",
        "sensitivity",
    }
    assert _resolved(project) == before


def _resolved(project: Path) -> dict[str, str]:
    """What `repro resolve` writes, by stage."""
    _repro(project, "resolve", "--profile", "ci")
    return {path.stem: path.read_text() for path in (project / "results/resolved").glob("*.json")}


def _repro(project: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-c", "from repro.cli import main; main()", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        check=True,
        capture_output=True,
    )


def _computing() -> xr.Dataset:
    """Computing times of every model: a tenth of a second, and a hundredth a sequence."""
    sizes = np.array([1, 4, 16])
    times = np.broadcast_to((0.1 + 0.01 * sizes)[:, None], (3, 2))
    return made_up_computing(list(read_models()), times, 1e7 + 1e6 * sizes)
