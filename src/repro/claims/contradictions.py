"""Contradictions of the documents with themselves or each other, by their own numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from repro.claims.published import claim_ids, read_claims


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
    """Compute A2/A1 from fractions in percent, where all other times are equal."""
    slow, fast = slow / 100, fast / 100
    return slow / (1 - slow) / (fast / (1 - fast))


def _iteration_ratio(stated: float, fast: float, slow: float) -> float:
    return (1 - fast / 100) / (1 - slow / 100)


def _other(stated: float, other: float, *_: float) -> float:
    return other


_AMDAHL = "shares f of equal computing: [f/(1-f)] slow / [f/(1-f)] fast"
_SPEED_UP = "shares f of equal computing: (1-f) fast / (1-f) slow"
_GAINS = "a sample has as many operations with compression as without: both gains are one"
# Quantity, its unit, claims (the stated one first), the implied value by the claims' values, and
# the arithmetic in words.
_CHECKS: tuple[tuple[str, str, str, Callable[..., float], str], ...] = (
    ("AllReduce IPoIB / RDMA, weak", "x", "C072 C019 C020", _all_reduce_ratio, _AMDAHL),
    ("AllReduce TCP / RDMA, weak", "x", "C073 C019 C021", _all_reduce_ratio, _AMDAHL),
    ("iteration IPoIB / RDMA, weak", "x", "C017 C019 C020", _iteration_ratio, _SPEED_UP),
    ("iteration TCP / RDMA, weak", "x", "C018 C019 C021", _iteration_ratio, _SPEED_UP),
    ("iteration IPoIB / RDMA, strong", "x", "C032 C003 C004", _iteration_ratio, _SPEED_UP),
    ("iteration TCP / RDMA, strong", "x", "C033 C003 C005", _iteration_ratio, _SPEED_UP),
    (
        "largest AllReduce share",
        "%",
        "C039 C040",
        _other,
        "the abstract's number against the contributions' one",
    ),
    (
        "GPT-2-Large's rate, mean over protocols, at most",
        "Gbps",
        "C014 C007 C009 C011",
        lambda stated, *ends: sum(ends) / len(ends),
        "mean of the three ranges' upper ends",
    ),
    (
        "RDMA rate while the AllReduce lasts",
        "Gbps",
        "C007 C003",
        lambda rate, fraction: rate / (fraction / 100),
        "mean rate / share of the time that the AllReduce takes: stated rates are averages",
    ),
    (
        "largest batch of GPT-2-Large on 8 GPUs at 73 % share",
        "%",
        "C113 C019 C105",
        _other,
        "a share that falls with the batch is below that of micro batch 4",
    ),
    (
        "GPT-350M, bandwidth between nodes",
        "GB/s",
        "C126 C122 C127",
        lambda stated, megabytes, ms: megabytes / 1e3 * 7 / (8 * ms / 1e3),
        "the report's own formula: 700 MB x 7 / (8 x 62 ms)",
    ),
    ("naive compression, gain of samples per second", "%", "C147 C146", _other, _GAINS),
    ("hybrid compression, gain of samples per second", "%", "C149 C148", _other, _GAINS),
)


def contradictions() -> list[Contradiction]:
    """Compute every check from the published values."""
    published = {claim.id: claim.value for claim in read_claims()}
    found = []
    for quantity, unit, claims, implied, arithmetic in _CHECKS:
        ids = claim_ids(claims)
        values = [published[claim] for claim in ids]
        stated = values[0]
        assert stated is not None
        found.append(Contradiction(quantity, unit, stated, implied(*values), arithmetic, ids))
    return found
