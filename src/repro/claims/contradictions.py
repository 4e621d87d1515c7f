"""Contradictions of the documents with themselves or each other, by their own numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from repro.claims.published import claim_ids, read_claims, read_rows


@dataclass(frozen=True)
class Contradiction:
    """Two readings of one quantity: the stated one, and what other stated numbers imply.

    `claims` are the ids used, first that of the stated value; `arithmetic` is how the implied value
    follows from the others.
    """

    quantity: str
    unit: str
    stated: float
    implied: float
    arithmetic: str
    claims: tuple[str, ...]


def _all_reduce_ratio(stated: float, fast: float, slow: float) -> float:
    """Compute A2/A1 from communication fractions in percent, with all other times equal."""
    slow, fast = slow / 100, fast / 100
    return slow / (1 - slow) / (fast / (1 - fast))


def _iteration_ratio(stated: float, fast: float, slow: float) -> float:
    return (1 - fast / 100) / (1 - slow / 100)


# Implied value from the stated value and the values of the other claims.
_FORMULAS: Mapping[str, Callable[..., float]] = {
    "all-reduce ratio": _all_reduce_ratio,
    "iteration ratio": _iteration_ratio,
    "same": lambda stated, other, *_: other,
    "mean": lambda stated, *others: sum(others) / len(others),
    "rate while it lasts": lambda rate, percent: rate / (percent / 100),
    "bus bandwidth": lambda stated, megabytes, ms: megabytes / 1e3 * 7 / (8 * ms / 1e3),
}


def contradictions() -> list[Contradiction]:
    """Compute every check of `data/published/contradictions.csv` from the published values."""
    published = {claim.id: claim.value for claim in read_claims()}
    found = []
    for row in read_rows("contradictions"):
        ids = claim_ids(row["claims"])
        values = [published[claim] for claim in ids]
        stated = values[0]
        assert stated is not None
        implied = _FORMULAS[row["formula"]](*values)
        found.append(
            Contradiction(row["quantity"], row["unit"], stated, implied, row["arithmetic"], ids)
        )
    return found
