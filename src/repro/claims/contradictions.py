"""Where the documents contradict themselves or each other, by arithmetic on their own numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from repro.claims.published import read_claims

Values = Mapping[str, float]


@dataclass(frozen=True)
class Contradiction:
    """Two readings of one quantity: what is stated, and what other stated numbers imply.

    `claims` are the ids used, `arithmetic` how the implied value follows from them.
    """

    quantity: str
    unit: str
    stated: float
    implied: float
    arithmetic: str
    claims: tuple[str, ...]


@dataclass(frozen=True)
class _Check:
    quantity: str
    unit: str
    stated: str
    implied: Callable[[Values], float]
    arithmetic: str
    others: tuple[str, ...]


def _all_reduce_ratio(slow: str, fast: str) -> Callable[[Values], float]:
    """With equal times outside the all-reduce, A = f/(1-f) of them: A2/A1."""

    def ratio(values: Values) -> float:
        f2, f1 = values[slow] / 100, values[fast] / 100
        return f2 / (1 - f2) / (f1 / (1 - f1))

    return ratio


def _iteration_ratio(slow: str, fast: str) -> Callable[[Values], float]:
    return lambda values: (1 - values[fast] / 100) / (1 - values[slow] / 100)


_AMDAHL = "shares f of equal computing: [f/(1-f)] slow / [f/(1-f)] fast"
_SPEED_UP = "shares f of equal computing: (1-f) fast / (1-f) slow"

_CHECKS = (
    _Check(
        "AllReduce IPoIB / RDMA, weak",
        "x",
        "C072",
        _all_reduce_ratio("C020", "C019"),
        _AMDAHL,
        ("C019", "C020"),
    ),
    _Check(
        "AllReduce TCP / RDMA, weak",
        "x",
        "C073",
        _all_reduce_ratio("C021", "C019"),
        _AMDAHL,
        ("C019", "C021"),
    ),
    _Check(
        "iteration IPoIB / RDMA, weak",
        "x",
        "C017",
        _iteration_ratio("C020", "C019"),
        _SPEED_UP,
        ("C019", "C020"),
    ),
    _Check(
        "iteration TCP / RDMA, weak",
        "x",
        "C018",
        _iteration_ratio("C021", "C019"),
        _SPEED_UP,
        ("C019", "C021"),
    ),
    _Check(
        "iteration IPoIB / RDMA, strong",
        "x",
        "C032",
        _iteration_ratio("C004", "C003"),
        _SPEED_UP,
        ("C003", "C004"),
    ),
    _Check(
        "iteration TCP / RDMA, strong",
        "x",
        "C033",
        _iteration_ratio("C005", "C003"),
        _SPEED_UP,
        ("C003", "C005"),
    ),
    _Check(
        "largest AllReduce share",
        "%",
        "C039",
        lambda values: values["C040"],
        "the abstract's number against the contributions' one",
        ("C040",),
    ),
    _Check(
        "GPT-2-Large's rate, mean over protocols, at most",
        "Gbps",
        "C014",
        lambda values: (values["C007"] + values["C009"] + values["C011"]) / 3,
        "mean of the three ranges' upper ends",
        ("C007", "C009", "C011"),
    ),
    _Check(
        "RDMA rate while the AllReduce lasts",
        "Gbps",
        "C007",
        lambda values: values["C007"] / (values["C003"] / 100),
        "mean rate / share of the time that the AllReduce takes: stated rates are averages",
        ("C003",),
    ),
    _Check(
        "largest batch of GPT-2-Large on 8 GPUs at 73 % share",
        "%",
        "C113",
        lambda values: values["C019"],
        "a share that falls with the batch is below that of micro batch 4",
        ("C019", "C105"),
    ),
    _Check(
        "GPT-350M, bandwidth between nodes",
        "GB/s",
        "C126",
        lambda values: values["C122"] / 1e3 * 7 / (8 * values["C127"] / 1e3),
        "the report's own formula: 700 MB x 7 / (8 x 62 ms)",
        ("C122", "C127"),
    ),
)


def contradictions() -> list[Contradiction]:
    """Every check, computed from the published values."""
    values = {claim.id: claim.value for claim in read_claims() if claim.value is not None}
    return [
        Contradiction(
            quantity=check.quantity,
            unit=check.unit,
            stated=values[check.stated],
            implied=check.implied(values),
            arithmetic=check.arithmetic,
            claims=(check.stated, *check.others),
        )
        for check in _CHECKS
    ]
