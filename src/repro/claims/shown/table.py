"""Claims as a table for a notebook."""

from collections.abc import Sequence

import pandas as pd

from repro.claims.findings import Judgement

_REAL_NODES = ["cluster", "verdict there"]


def frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """One row per claim, indexed by its id, numbers with their units and intervals as text.

    `prediction`, `verdict` and `verdict there` are those on the column before them. `cluster` is
    there if real nodes were measured.
    """
    rows = pd.DataFrame(
        {
            "id": [j.id for j in judgements],
            "statement": [j.statement for j in judgements],
            "published": [published_text(j) for j in judgements],
            "predicted": [found(j.predicted, j.predicted_interval, j.unit) for j in judgements],
            "prediction": [j.predicted_verdict for j in judgements],
            "testbed": [found(j.testbed, j.interval, j.unit) for j in judgements],
            "verdict": [j.verdict for j in judgements],
            "cluster": [found(j.cluster, j.cluster_interval, j.unit) for j in judgements],
            "verdict there": [j.cluster_verdict for j in judgements],
            "note": [_note(j) for j in judgements],
        }
    ).set_index("id")
    if all(judgement.cluster is None for judgement in judgements):
        return rows.drop(columns=_REAL_NODES)
    return rows


def _note(judgement: Judgement) -> str:
    parts = (judgement.predicted_reason, judgement.reason, judgement.note)
    return "; ".join(part for part in dict.fromkeys(parts) if part)


def published_text(judgement: Judgement) -> str:
    """What the document has: a number with its unit, or that an order or a trend holds."""
    if judgement.published is None:
        return "holds"
    return _number(judgement.published, judgement.unit)


def found(value: float | None, interval: tuple[float, float] | None, unit: str) -> str:
    """What a source has: a number with its interval, the share of resamples, or a dash."""
    if value is None:
        return "-"
    if interval is None:
        return f"in {value:.0%} of resamples"
    low, high = interval
    return f"{_number(value, unit)} [{low:.3g}, {high:.3g}]"


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}"
