"""Judgements as a table, and their numbers as text."""

from collections.abc import Mapping, Sequence

import pandas as pd

from repro.claims.findings import Finding, Judgement, Source

# Columns of values by source, each with the column of its verdict.
VERDICT_COLUMNS: Mapping[Source, str] = {
    "predicted": "prediction",
    "testbed": "verdict",
    "cluster": "verdict there",
}


def frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Return one row per claim, indexed by id, with numbers, units and intervals as text.

    Columns `prediction`, `verdict` and `verdict there` belong to the column before them. Column
    `cluster` exists if GPU nodes were measured.
    """
    columns: dict[str, list[str]] = {
        "id": [one.id for one in judgements],
        "statement": [one.statement for one in judgements],
        "published": [published_text(one) for one in judgements],
    }
    for source, verdict in VERDICT_COLUMNS.items():
        columns[source] = [value_text(one.findings[source], one.unit) for one in judgements]
        columns[verdict] = [one.findings[source].verdict for one in judgements]
    columns["note"] = [_note(one) for one in judgements]
    rows = pd.DataFrame(columns).set_index("id")
    if all(one.findings["cluster"].value is None for one in judgements):
        return rows.drop(columns=["cluster", VERDICT_COLUMNS["cluster"]])
    return rows


def published_text(judgement: Judgement) -> str:
    """Return the published number with its unit; "holds" for an order or a trend."""
    if judgement.published is None:
        return "holds"
    return f"{judgement.published:.3g} {judgement.unit}"


def value_text(found: Finding, unit: str) -> str:
    """Return a source's number with its interval, the fraction of resamples, or a dash."""
    if found.value is None:
        return "-"
    if found.interval is None:
        return f"in {found.value:.0%} of resamples"
    low, high = found.interval
    return f"{found.value:.3g} {unit} [{low:.3g}, {high:.3g}]"


def _note(judgement: Judgement) -> str:
    reasons = [judgement.findings[source].reason for source in ("predicted", "testbed")]
    return "; ".join(part for part in dict.fromkeys([*reasons, judgement.note]) if part)
