"""Studies that are no experiments: whose measurements judge which claims."""

import pandas as pd
import pytest
import xarray as xr

from repro.claims.studies import partitions
from repro.claims.studies.every import STUDIES, brought_by
from repro.claims.verdicts import judge_claims
from repro.results.store import not_run, read_evidence

_MEASURED = xr.Dataset({"iteration_time_s": ("source", [1.0])}, coords={"source": ["testbed"]})


def test_all_of_them_are_evidence() -> None:
    assert set(STUDIES) <= set(read_evidence())
    assert brought_by("weak_scaling") == frozenset()


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
    assert judged["C145"].verdict == verdict
    assert "0.7 in ZeRO-3" in judged["C145"].reason
    assert judged["C145"].cluster_verdict == "not run"
    assert judged["C142"].reason == "no experiment answers it"


def test_what_was_not_measured_says_why() -> None:
    judged = {
        one.id: one for one in judge_claims({"hierarchical_zero": not_run({"testbed": "idle"})})
    }
    assert judged["C145"].reason == "testbed: idle"
