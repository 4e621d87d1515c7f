"""Predictions of claims that no predicted experiment answers."""

import numpy as np
import pytest

from repro.claims.experiments.quantities import TESTS
from repro.claims.findings import Judgement
from repro.claims.published import documented_claims, read_claims
from repro.claims.studies.predictions import PREDICTIONS
from repro.claims.verdicts import judge

pytestmark = pytest.mark.slow


def test_predictions_belong_to_claims_that_no_experiment_tests() -> None:
    ids = {claim.id for claim in read_claims()}
    assert set(PREDICTIONS) <= ids
    # Adam's moments are counted on the testbed only; what they must be is arithmetic.
    assert set(PREDICTIONS) & set(TESTS) == {"C135"}


@pytest.mark.parametrize("claim", ["C114", "C122", "C135", "C137", "C138", "C139", "C140", "C141"])
def test_numbers_are_finite_and_draws_surround_them(claim: str) -> None:
    value, draws = PREDICTIONS[claim].evaluate()
    assert np.isfinite(value) and np.isfinite(draws).all()
    assert draws.min() <= value <= draws.max()


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    """All claims, without anything that was measured."""
    return {judgement.id: judgement for judgement in judge(documented_claims(), {})}


def test_every_claim_of_the_documents_is_judged(judged: dict[str, Judgement]) -> None:
    assert len(judged) == 164
    assert all(entry.verdict in ("not run", "input") for entry in judged.values())
    answered = [entry for entry in judged.values() if entry.predicted is not None]
    assert len(answered) > 110
    # Two ratios gave the protocols' rates: the model reproduces them by construction.
    assert {judged[claim].predicted_verdict for claim in ("C072", "C073")} == {"input"}


def test_claims_about_hardware_are_judged_on_predictions(judged: dict[str, Judgement]) -> None:
    speed_up = judged["C155"]
    assert speed_up.predicted is not None and speed_up.predicted_interval is not None
    low, high = speed_up.predicted_interval
    assert 1 < low < speed_up.predicted < high
    # The paper's 12 to 1 nm are what the technologies hold.
    assert {judged[claim].predicted_verdict for claim in ("C156", "C157")} == {"reproduced"}
    # A summary that says what the abstract it quotes does not.
    assert {judged[claim].predicted_verdict for claim in ("C158", "C159")} == {"not reproduced"}


def test_three_levels_are_judged_on_predictions(judged: dict[str, Judgement]) -> None:
    assert {judged[claim].predicted_verdict for claim in ("C144", "C145")} == {"reproduced"}
    for claim in ("C142", "C143"):
        one = judged[claim]
        assert one.predicted is not None and one.predicted_interval is not None
        assert one.predicted_interval[0] <= one.predicted <= one.predicted_interval[1]
        # What the abstract leaves open is said beside every number.
        assert "the abstract states none of it" in one.predicted_reason
