"""Results that are measured again after a change, and stages that DVC runs again."""

import shutil
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from dvc.repo import Repo
from made_up import made_up_computing

from repro.catalog.models.papers import read_models
from repro.catalog.studies.experiments import EXPERIMENTS
from repro.catalog.studies.selection import select
from repro.catalog.systems import protocols
from repro.experiments import computing as computing_times
from repro.experiments.sources import measurement_of
from repro.launch import method
from repro.launch.store import key
from repro.paths import ROOT
from repro.results.store import write_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project in which every stage's outputs exist and are up to date."""
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
        repo.commit(force=True)
    return folder


def _stale(project: Path, *touched: str) -> set[str]:
    """Return the groups of stages that DVC would run after an edit of some files."""
    before = {project / name: (project / name).read_text(encoding="utf-8") for name in touched}
    for path, text in before.items():
        path.write_text(f"{text}# More.\n", encoding="utf-8")
    with chdir(project):
        stale = {name.partition("@")[0] for name in Repo().status()}
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")
    return stale


def test_stages_run_again_after_edits_of_their_inputs(project: Path) -> None:
    assert _stale(project) <= {"machine"}
    presentation = (
        "src/repro/doctor.py",
        "src/repro/cli/measuring.py",
        "src/repro/figures/export.py",
    )
    assert not _stale(project, *presentation) & {"compute", "measure"}
    assert "measure" in _stale(project, "src/repro/testbed/links.py")
    assert {"compute", "measure"} <= _stale(project, "src/repro/train/run.py")
    assert "notebook" in _stale(project, "notebooks/weak_scaling.ipynb")


def test_every_dataset_of_the_pipeline_has_a_function(project: Path) -> None:
    from repro.studies.datasets import measured_datasets

    with chdir(project):
        stages = {stage.addressing for stage in Repo().index.stages}
    measured = {name.removeprefix("measure@") for name in stages if name.startswith("measure@")}
    assert measured == set(measured_datasets())


def test_an_edit_of_text_measures_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "repro"
    shutil.copytree(ROOT / "src/repro", package)
    monkeypatch.setattr(method, "_PACKAGE", package)

    def digests() -> dict[str, str]:
        method.method_digest.cache_clear()
        return {name: method.method_digest(name) for name in method.METHODS}

    before, run = digests(), package / "train/run.py"
    run.write_text(f"{run.read_text()}# A comment.\n")
    assert digests() == before
    run.write_text(f"{run.read_text()}MORE = 1\n")
    changed = {name for name, digest in digests().items() if digest != before[name]}
    assert changed == {"training", "cpu"}
    monkeypatch.undo()
    method.method_digest.cache_clear()


def test_another_rate_of_tcp_changes_only_what_runs_over_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing_times, "RESULTS", tmp_path)
    sizes = np.array([1, 4, 16])
    times = np.broadcast_to((0.1 + 0.01 * sizes)[:, None], (3, 2))
    computing = made_up_computing(list(read_models()), times, 1e7 + 1e6 * sizes)
    write_dataset(computing, computing_times.compute_path())
    before = _keys()
    entries = dict(protocols.read_protocols())
    rate = 1.1 * entries["tcp"].effective_gbps
    entries["tcp"] = entries["tcp"].model_copy(update={"effective_gbps": rate})
    monkeypatch.setattr(protocols, "read_protocols", lambda: entries)
    after = _keys()
    changed = {where for where, digest in after.items() if digest != before[where]}
    assert changed == {where for where in before if where[1] == "tcp"} != set()


def _keys() -> Mapping[tuple[str, str, str], str]:
    """Return the key of every request of the experiments, by experiment, protocol and label."""
    return {
        (name, request.protocol, request.label): key(request)
        for name in EXPERIMENTS
        for request in measurement_of(select(name, profile="ci")).requests
    }
