"""Claims as a table for a terminal or a notebook."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from repro.claims.verdicts import Judgement, Verdict

_STATEMENT_WIDTH = 62
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
            "published": [
                "holds" if j.published is None else _number(j.published, j.unit) for j in judgements
            ],
            "predicted": [_found(j.predicted, j.predicted_interval, j.unit) for j in judgements],
            "prediction": [j.predicted_verdict for j in judgements],
            "testbed": [_found(j.testbed, j.interval, j.unit) for j in judgements],
            "verdict": [j.verdict for j in judgements],
            "cluster": [_found(j.cluster, j.cluster_interval, j.unit) for j in judgements],
            "verdict there": [j.cluster_verdict for j in judgements],
            "note": [_note(j) for j in judgements],
        }
    ).set_index("id")
    if all(judgement.cluster is None for judgement in judgements):
        return rows.drop(columns=_REAL_NODES)
    return rows


def table(judgements: Sequence[Judgement]) -> str:
    """The claims as text, and how many there are of each verdict."""
    rows = frame(judgements).drop(columns=[*_REAL_NODES, "note"], errors="ignore")
    rows["statement"] = [text[:_STATEMENT_WIDTH] for text in rows["statement"]]
    return "\n".join(
        [
            rows.to_string(justify="left"),
            "",
            f"predicted: {_counts([j.predicted_verdict for j in judgements])}",
            f"testbed: {_counts([j.verdict for j in judgements])}",
            *dict.fromkeys(
                f"{j.verdict}: {j.reason}" for j in judgements if j.verdict in ("not run", "input")
            ),
        ]
    )


def _counts(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).most_common())


def _note(judgement: Judgement) -> str:
    parts = (judgement.predicted_reason, judgement.reason, judgement.note)
    return "; ".join(part for part in dict.fromkeys(parts) if part)


def _found(value: float | None, interval: tuple[float, float] | None, unit: str) -> str:
    if value is None:
        return "-"
    if interval is None:
        return f"in {value:.0%} of resamples"
    low, high = interval
    return f"{_number(value, unit)} [{low:.3g}, {high:.3g}]"


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}"
