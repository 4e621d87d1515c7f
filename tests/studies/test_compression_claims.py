"""What losses say of compressed messages, and what full scale says of gains."""

import numpy as np
import pytest
import xarray as xr

from repro.claims.contradictions import contradictions
from repro.claims.verdicts import judge_claims

_SEEDS = 5


def _losses(**above: float) -> xr.Dataset:
    """Losses of seeds that differ by more than schemes do, each scheme as much above none."""
    seeds = np.linspace(4.0, 5.0, _SEEDS)
    noise = 0.01 * np.array([1.0, -1.0, 2.0, -2.0, 0.0])
    names = {name.replace("_", "-"): value for name, value in above.items()}
    rows = [seeds] + [seeds + value + noise for value in names.values()]
    return xr.Dataset(
        {"validation_loss": (("scheme", "seed", "validated_step"), np.array(rows)[..., None])},
        coords={"scheme": ["none", *names], "seed": range(_SEEDS), "validated_step": [60]},
    )


@pytest.mark.parametrize(
    ("naive", "hybrid", "turned", "verdicts"),
    [
        (0.5, 0.0, 0.4, ("reproduced", "reproduced")),
        # Hybrid is above none too, and less than naive.
        (0.5, 0.2, 0.2001, ("same direction", "same direction")),
        (0.1, 0.2, 0.1, ("not reproduced", "not reproduced")),
        (-0.1, -0.2, 0.1, ("not reproduced", "reproduced")),
    ],
)
def test_losses_are_judged_by_their_intervals(
    naive: float, hybrid: float, turned: float, verdicts: tuple[str, str]
) -> None:
    losses = _losses(naive_4=naive, hybrid_4=hybrid, reversed_4=turned)
    judged = {one.id: one for one in judge_claims({"compression": losses})}
    assert set(judged) == {f"C{number}" for number in range(146, 152)}
    first, second = (judged[name].findings["testbed"] for name in ("C150", "C151"))
    assert (first.verdict, second.verdict) == verdicts
    assert f"naive-4 {naive:+.3f}" in first.reason and "5 seeds" in first.reason
    # The model knows nothing of losses.
    assert {judged[name].findings["predicted"].verdict for name in ("C150", "C151")} == {"not run"}


def test_a_scheme_that_was_not_trained_is_named() -> None:
    judged = {one.id: one for one in judge_claims({"compression": _losses(naive_4=0.5)})}
    found = judged["C151"].findings["testbed"]
    assert found.verdict == "not run"
    assert found.reason == "compression was run without scheme hybrid-4, reversed-4"


def test_gains_of_one_scheme_are_one_number_and_say_what_is_assumed() -> None:
    judged = {one.id: one for one in judge_claims({"compression": _losses()})}
    for tflops, samples in (("C146", "C147"), ("C148", "C149")):
        one, other = judged[tflops], judged[samples]
        assert one.findings["predicted"].value == other.findings["predicted"].value
        found = one.findings["predicted"]
        assert found.value is not None and found.interval is not None
        assert found.interval[0] <= found.value <= found.interval[1]
        assert "the abstract states none of it" in found.reason


def test_the_abstract_contradicts_itself_twice() -> None:
    found = {entry.claims: entry for entry in contradictions()}
    naive, hybrid = found["C147", "C146"], found["C149", "C148"]
    assert (naive.stated, naive.implied) == (23.6, 22.5)
    assert (hybrid.stated, hybrid.implied) == (12.7, 17.3)
