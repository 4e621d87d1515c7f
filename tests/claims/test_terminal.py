"""Claims on a terminal: a screenful, rows, one in full."""

import re

import pytest
import xarray as xr
from rich.console import Console, RenderableType

from repro.claims.findings import Judgement
from repro.claims.published import DOCUMENTS, observation_of, observations, read_claims
from repro.claims.terminal import (
    card,
    check_verdict,
    overview,
    requested_claims,
    rows,
    with_verdict,
)
from repro.claims.verdicts import judge_claims
from repro.errors import ReproError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judged(made_up_results: xr.Dataset) -> list[Judgement]:
    return judge_claims({"strong_scaling": made_up_results, "weak_scaling": made_up_results})


def _shown(what: RenderableType, colour: bool = False, width: int = 80) -> str:
    console = Console(width=width, highlight=False, force_terminal=colour)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_every_judged_claim_belongs_to_one_observation() -> None:
    listed = [claim for one in observations() for claim in one.claims]
    assert sorted(listed) == [c.id for c in read_claims() if c.source in DOCUMENTS]


def test_an_overview_is_a_screenful_that_counts_and_says_why(judged: list[Judgement]) -> None:
    text = _shown(overview(judged))
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 80
    row = next(line for line in text.splitlines() if "8 vs 4" in line)
    mine = [j for j in judged if j.id in ("C082", "C083", "C084", "C085")]
    # Claims, the prediction's three counts, the testbed's: zeros are left out.
    wanted = [len(mine)]
    for source in ("predicted", "testbed"):
        verdicts = [j.verdicts[source] for j in mine]
        for kind in ("reproduced", "same direction", "not reproduced"):
            wanted += [verdicts.count(kind)] if kind in verdicts else []
    assert [int(number) for number in re.findall(r"\d+", row)[2:]] == wanted
    assert "a ring moves" in text
    assert "testbed: " in text and "2 input" in text


def test_a_row_a_claim_and_colour_on_a_terminal_only(judged: list[Judgement]) -> None:
    text = _shown(rows(judged), width=160)
    assert sum(bool(re.match(r" *C\d{3} ", line)) for line in text.splitlines()) == len(judged)
    assert "53.4 %" in text and "\x1b" not in text
    assert "\x1b[32m" in _shown(rows(judged), colour=True)


def test_one_claim_in_full(judged: list[Judgement]) -> None:
    (requested,) = requested_claims(["c017"], None)
    (one,) = [j for j in judged if j.id == requested.id]
    text = _shown(card(one))
    for part in ("2.51 x", "IEEE Micro" if one.source == "micro2024" else "Hot Interconnects"):
        assert part in text
    assert "C032, C074, C116" in text
    # Both sides of the contradiction, and what to run.
    assert "implied" in text and "C017, C019, C020" in text
    assert "dvc repro measure@weak_scaling" in text
    missed = next(j for j in judged if j.verdicts["testbed"] == "not reproduced")
    assert observation_of(missed.id).why[:20] in _shown(card(missed))


def test_filters_and_unknown_words(judged: list[Judgement]) -> None:
    chosen = with_verdict(judged, "not reproduced")
    assert 0 < len(chosen) < len(judged)
    for j in chosen:
        assert "not reproduced" in j.verdicts.values()
    mine = {claim.id for claim in requested_claims((), "strong_scaling")}
    assert mine and mine < {claim.id for claim in requested_claims((), None)}
    assert requested_claims(["c017"], "weak_scaling") and not requested_claims(["c017"], "gpt350m")
    for refused in (
        lambda: requested_claims(["C999"], None),
        lambda: requested_claims((), "none"),
        lambda: check_verdict("good"),
    ):
        with pytest.raises(ReproError, match="unknown"):
            refused()
