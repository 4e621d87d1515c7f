"""Other papers' errors as yardsticks: as small an error, as large a share."""

from pathlib import Path

import pytest
from made_up_operators import made_up_operators

from repro.claims.studies.operators import Yardstick, yardstick
from repro.claims.verdicts import judge_claims
from repro.results import store
from repro.results.store import not_run


def test_errors_and_shares_are_those_of_the_measurements() -> None:
    results = made_up_operators(factor=1.25)
    for claim in ("C162", "C163"):
        found = yardstick(claim, results)
        assert found.value == pytest.approx(20.0, abs=0.1)
        assert found.interval[0] <= found.value + 1e-6 and found.interval[1] >= found.value - 1e-6
    assert yardstick("C164", results).value == 100.0
    assert "1 of 1" in yardstick("C164", results).said


def test_less_is_better_of_errors_and_more_of_shares() -> None:
    assert Yardstick(2.0, (1.0, 3.0), "", least=True).reaches(3.0)
    assert Yardstick(4.0, (2.9, 6.0), "", least=True).reaches(3.0)
    assert not Yardstick(4.0, (3.5, 6.0), "", least=True).reaches(3.0)
    assert Yardstick(90.0, (60.0, 99.0), "", least=False).reaches(85.0)
    assert not Yardstick(50.0, (30.0, 70.0), "", least=False).reaches(85.0)


def test_verdicts_are_of_the_testbed() -> None:
    judged = {one.id: one for one in judge_claims({"operators": made_up_operators(1.25)})}
    assert set(judged) == {"C162", "C163", "C164"}
    assert judged["C163"].verdict == "not reproduced" and judged["C164"].verdict == "reproduced"
    assert judged["C163"].predicted is None
    (reason,) = {one.reason for one in judge_claims({"operators": not_run({"machine": "idle"})})}
    assert reason == "machine: idle"


def test_what_an_earlier_version_measured_is_said_to_be_outdated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    store.write_dataset(made_up_operators(), tmp_path / "operators.nc")
    assert store.has_runs(store.read_result("operators"))
    outdated = made_up_operators().drop_vars("call_autograd")
    store.write_dataset(outdated, tmp_path / "operators.nc")
    (reason,) = {one.reason for one in judge_claims({"operators": store.read_result("operators")})}
    assert "earlier version" in reason
