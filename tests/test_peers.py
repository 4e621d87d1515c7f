"""Answers of other performance models: all published runs, today's calibration, the page."""

import importlib
from types import ModuleType

import pandas as pd
import pytest

from repro.paths import ROOT


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("peers")


@pytest.fixture
def answers(peers: ModuleType) -> pd.DataFrame:
    return pd.read_csv(peers.ANSWERS, comment="#")


def test_every_published_run_has_a_row(peers: ModuleType, answers: pd.DataFrame) -> None:
    runs = peers.published_runs()
    assert answers[["file", "id"]].to_numpy().tolist() == runs[["file", "id"]].to_numpy().tolist()
    assert answers.repro_held_out.notna().all()


def test_predictions_are_todays(peers: ModuleType, answers: pd.DataFrame) -> None:
    """After `repro calibrate`, ask again (docs/explanation/peers.md)."""
    runs = peers.published_runs()
    expected = {"repro": peers.predicted(runs).time_s, "constant_rate": peers.constant_rate_s(runs)}
    for name, times in expected.items():
        assert answers[name].to_numpy() == pytest.approx(times.to_numpy(), rel=1e-4, nan_ok=True)


def test_rates_are_learnt_from_other_models(peers: ModuleType) -> None:
    runs = pd.DataFrame({"size": ["a", "a", "b"], "iteration_time_s": [2.0, 2.0, 4.0]})
    runs = runs.assign(kind="dense", today=True, gpu_name="h100", dtype="bf16")
    rates = peers.learnt_rate(runs, pd.Series([1.0, 1.0, 1.0]))
    assert rates.tolist() == [0.25, 0.25, 0.5]
    assert peers.learnt_rate(runs[:2], pd.Series([1.0, 1.0])).isna().all()


def test_tables_of_the_page_agree_with_the_answers(peers: ModuleType) -> None:
    renew = importlib.import_module("renew")
    text = (ROOT / "docs" / "explanation" / "peers.md").read_text(encoding="utf-8")
    assert text.count("<!-- table peers") == 2
    assert renew.renewed(text) == text
