"""Results belong to a machine: one that changes is noticed, and what is not its own is named."""

import json
from pathlib import Path

import pytest
import xarray as xr

from repro.catalog.studies.experiments import most_gpus
from repro.experiments import this_machine
from repro.experiments.this_machine import caveats, emulated_gpu, note_machine
from repro.results.store import not_run
from repro.testbed.ability import Ability
from repro.testbed.speed import cores_per_rank


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_machine, "testbed_ability", lambda: Ability(True, "as root"))


def test_the_same_machine_leaves_its_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    assert list(note_machine(path)) == []
    before = path.read_bytes()
    assert list(note_machine(path)) == []
    assert path.read_bytes() == before


def test_fewer_cores_are_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "machine.json"
    list(note_machine(path))
    here = json.loads(path.read_text())
    machine = {"processor": here["processor"], "usable_cores": here["usable_cores"] + 1}
    monkeypatch.setattr(this_machine, "computing_machine", lambda: machine)
    (said,) = note_machine(path)
    assert f"usable_cores {here['usable_cores']}" in said
    assert "measured again" in said
    assert json.loads(path.read_text())["usable_cores"] == machine["usable_cores"]


def test_a_machine_that_may_now_run_the_testbed_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "machine.json"
    forbidden = Ability(False, "user 1000 may not")
    with monkeypatch.context() as there:
        there.setattr(this_machine, "testbed_ability", lambda: forbidden)
        assert "user 1000 may not" in next(iter(note_machine(path)))
    (said,) = note_machine(path)
    assert "testbed False" in said


def test_readers_are_told_first_what_is_missing_and_what_is_not_this_machines() -> None:
    here = emulated_gpu(cores_per_rank(most_gpus("pinnacles")))
    own = xr.Dataset({"iteration_time_s": ((), 1.0)}, attrs={"emulated_gpu": json.dumps(here)})
    elsewhere = {**here, "processor": "another", "cores": 0.05}
    moved = own.assign_attrs(emulated_gpu=json.dumps(elsewhere))
    missing = not_run({"testbed": "user 1000 may not"})
    results = {"weak_scaling": own, "strong_scaling": moved, "data_batches": missing}
    first, second = caveats(results)
    assert first == "Not measured: data_batches (testbed: user 1000 may not)."
    assert second.startswith("Measured on another machine: strong_scaling (processor another, not")
    assert ", cores 0.05, not" in second
