"""Studies that are no experiments: whose measurements judge which claims."""

import pandas as pd
import pytest
import xarray as xr

from repro.catalog.studies.experiments import EXPERIMENTS
from repro.claims.published import documented_claims
from repro.claims.quantities import Answer, StudyTest, answered_by, answers_by_claim
from repro.claims.verdicts import judge_claims
from repro.results.store import not_run
from repro.studies.datasets import read_evidence
from repro.studies.hierarchical_zero import claims as partitions

_MEASURED = xr.Dataset({"iteration_time_s": ("source", [1.0])}, coords={"source": ["testbed"]})


def _answers() -> list[Answer]:
    return [answer for own in answers_by_claim().values() for answer in own.values()]


def test_all_of_them_are_evidence() -> None:
    studies = {one.experiment for one in _answers() if isinstance(one, StudyTest)}
    assert studies == {"communication", "hierarchical_zero", "compression"}
    assert {one.experiment for one in _answers()} - {""} <= set(read_evidence())
    assert studies.isdisjoint(EXPERIMENTS)


def test_a_study_brings_the_claims_that_are_predicted_and_measured() -> None:
    brought = [one.id for one in documented_claims() if answered_by(one, {"hierarchical_zero"})]
    assert brought == ["C142", "C143", "C144", "C145"]


def test_every_answer_has_a_formula_and_belongs_to_a_claim() -> None:
    claims = {one.id: one for one in documented_claims()}
    no_formula = {name for name in answers_by_claim() if not claims[name].fact("formula")}
    # Statements of a summary, which do not hold.
    assert no_formula == {"C158", "C159"}


def test_two_answers_of_one_source_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = {**partitions.ANSWERS, "C017": StudyTest("hierarchical_zero", partitions.ANSWERS)}
    monkeypatch.setattr(partitions, "ANSWERS", twice)
    with pytest.raises(ValueError, match="C017: two answers"):
        answers_by_claim.__wrapped__()


@pytest.mark.parametrize(
    ("second_copies_mb", "verdict"), [(0.6, "reproduced"), (0.8, "not reproduced")]
)
def test_second_copies_spare_links_between_nodes(
    monkeypatch: pytest.MonkeyPatch, second_copies_mb: float, verdict: str
) -> None:
    sent = pd.DataFrame(
        [
            ("zero-3", "fabric", 0.5e6),
            ("zero-3", "fabric", 0.2e6),
            ("hpz", "fabric", 1e6 * second_copies_mb),
            ("zero-plus-plus", "fabric", 0.1e6),
            # What stays in a node says nothing.
            ("zero-plus-plus", "node", 9e6),
        ],
        columns=["scheme", "level", "sent_bytes"],
    )
    monkeypatch.setattr(partitions, "logged_by_level", lambda *_: sent)
    judged = {one.id: one for one in judge_claims({"hierarchical_zero": _MEASURED})}
    assert judged["C145"].findings["testbed"].verdict == verdict
    assert "0.7 in ZeRO-3" in judged["C145"].findings["testbed"].reason
    assert judged["C145"].findings["cluster"].verdict == "not run"
    assert judged["C142"].findings["testbed"].reason == "no experiment answers it"


def test_what_was_not_measured_says_why() -> None:
    judged = {
        one.id: one for one in judge_claims({"hierarchical_zero": not_run({"testbed": "idle"})})
    }
    assert judged["C145"].findings["testbed"].reason == "testbed: idle"
