"""Predictions of claims that no predicted experiment answers."""

import numpy as np
import pytest

from repro.claims.findings import Judgement
from repro.claims.published import documented_claims, read_claims
from repro.claims.quantities import Prediction, answers_by_claim, experiment_tests
from repro.claims.verdicts import evaluate, judge

pytestmark = pytest.mark.slow


def test_predictions_belong_to_claims_that_no_experiment_tests() -> None:
    ids = {claim.id for claim in read_claims()}
    predicted = {
        claim
        for claim, own in answers_by_claim().items()
        if isinstance(own.get("predicted"), Prediction)
    }
    assert len(predicted) == 20 and predicted <= ids
    # Adam's moments are counted on the testbed only; the prediction is arithmetic.
    assert predicted & set(experiment_tests()) == {"C135"}


@pytest.mark.parametrize("claim", ["C114", "C122", "C135", "C137", "C138", "C139", "C140", "C141"])
def test_numbers_are_finite_and_draws_surround_them(claim: str) -> None:
    prediction = answers_by_claim()[claim]["predicted"]
    assert isinstance(prediction, Prediction)
    value, draws = evaluate(prediction)
    assert np.isfinite(value) and np.isfinite(draws).all()
    assert draws.min() <= value <= draws.max()


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    """All claims, without anything that was measured."""
    return {judgement.id: judgement for judgement in judge(documented_claims(), {})}


def _predicted_verdicts(judged: dict[str, Judgement], *claims: str) -> set[str]:
    return {judged[claim].verdicts["predicted"] for claim in claims}


def test_every_claim_of_the_documents_is_judged(judged: dict[str, Judgement]) -> None:
    assert len(judged) == 164
    assert {entry.verdicts["testbed"] for entry in judged.values()} == {"not run", "input"}
    answered = [entry for entry in judged.values() if entry.findings["predicted"].value is not None]
    assert len(answered) > 110
    # Two ratios gave the protocols' rates: the model reproduces them by construction.
    assert _predicted_verdicts(judged, "C072", "C073") == {"input"}


def test_claims_about_hardware_are_judged_on_predictions(judged: dict[str, Judgement]) -> None:
    speed_up = judged["C155"].findings["predicted"]
    assert speed_up.value is not None and speed_up.interval is not None
    low, high = speed_up.interval
    assert 1 < low < speed_up.value < high
    # The paper's 12 to 1 nm are what the technologies hold.
    assert _predicted_verdicts(judged, "C156", "C157") == {"reproduced"}
    # A summary that says what the abstract it quotes does not.
    assert _predicted_verdicts(judged, "C158", "C159") == {"not reproduced"}


def test_three_levels_are_judged_on_predictions(judged: dict[str, Judgement]) -> None:
    assert _predicted_verdicts(judged, "C144", "C145") == {"reproduced"}
    for claim in ("C142", "C143"):
        one = judged[claim]
        found = one.findings["predicted"]
        assert found.value is not None and found.interval is not None
        assert found.interval[0] <= found.value <= found.interval[1]
        # What the abstract leaves open is said beside every number.
        assert "the abstract states none of it" in found.reason
