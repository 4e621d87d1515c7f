"""Claims as a table for a terminal or a notebook."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from repro.claims.verdicts import Judgement

_STATEMENT_WIDTH = 62


def frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """One row per claim, indexed by its id, numbers with their units as text."""
    return pd.DataFrame(
        {
            "id": [j.id for j in judgements],
            "statement": [j.statement for j in judgements],
            "published": [_published(j) for j in judgements],
            "predicted": [_number(j.predicted, j.unit) for j in judgements],
            "testbed": [_testbed(j) for j in judgements],
            "cluster": [_number(j.cluster, j.unit) for j in judgements],
            "verdict": [j.verdict for j in judgements],
            "note": [j.reason for j in judgements],
        }
    ).set_index("id")


def table(judgements: Sequence[Judgement]) -> str:
    """The claims as text, and how many there are of each verdict."""
    rows = frame(judgements).drop(columns=["predicted", "cluster", "note"])
    rows["statement"] = [text[:_STATEMENT_WIDTH] for text in rows["statement"]]
    counts = Counter(judgement.verdict for judgement in judgements)
    reasons = dict.fromkeys(
        f"{judgement.verdict}: {judgement.reason}" for judgement in judgements if judgement.reason
    )
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return "\n".join([rows.to_string(justify="left"), "", summary, *reasons])


def _published(judgement: Judgement) -> str:
    if judgement.published is None:
        return "holds"
    return _number(judgement.published, judgement.unit)


def _testbed(judgement: Judgement) -> str:
    if judgement.testbed is None:
        return "-"
    if judgement.interval is None:
        return f"in {judgement.testbed:.0%} of resamples"
    low, high = judgement.interval
    return f"{_number(judgement.testbed, judgement.unit)} [{low:.3g}, {high:.3g}]"


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.3g} {unit}"
