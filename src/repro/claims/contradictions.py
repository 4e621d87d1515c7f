"""Where the documents contradict themselves or each other, by arithmetic on their own numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from repro.claims.published import read_claims


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


_AMDAHL = "shares f of equal computing: [f/(1-f)] slow / [f/(1-f)] fast"
_SPEED_UP = "shares f of equal computing: (1-f) fast / (1-f) slow"


def _all_reduce_ratio(slow: float, fast: float) -> float:
    """With equal times outside the all-reduce, A = f/(1-f) of them: A2/A1."""
    return slow / (1 - slow) / (fast / (1 - fast))


def _iteration_ratio(slow: float, fast: float) -> float:
    return (1 - fast) / (1 - slow)


Ratio = Callable[[float, float], float]
# A ratio's quantity, its claim, how shares imply it, and the claims of the slow and the fast share.
_RATIOS: tuple[tuple[str, str, Ratio, str, str, str], ...] = (
    ("AllReduce IPoIB / RDMA, weak", "C072", _all_reduce_ratio, _AMDAHL, "C020", "C019"),
    ("AllReduce TCP / RDMA, weak", "C073", _all_reduce_ratio, _AMDAHL, "C021", "C019"),
    ("iteration IPoIB / RDMA, weak", "C017", _iteration_ratio, _SPEED_UP, "C020", "C019"),
    ("iteration TCP / RDMA, weak", "C018", _iteration_ratio, _SPEED_UP, "C021", "C019"),
    ("iteration IPoIB / RDMA, strong", "C032", _iteration_ratio, _SPEED_UP, "C004", "C003"),
    ("iteration TCP / RDMA, strong", "C033", _iteration_ratio, _SPEED_UP, "C005", "C003"),
)

# Compression: gains of TFLOPS and of samples per second.
_GAINS = (("naive", "C146", "C147"), ("hybrid", "C148", "C149"))


def contradictions() -> list[Contradiction]:
    """Every check, computed from the published values."""
    values = {claim.id: claim.value for claim in read_claims() if claim.value is not None}
    ratios = [
        Contradiction(
            quantity=quantity,
            unit="x",
            stated=values[stated],
            implied=ratio(values[slow] / 100, values[fast] / 100),
            arithmetic=arithmetic,
            claims=(stated, fast, slow),
        )
        for quantity, stated, ratio, arithmetic, slow, fast in _RATIOS
    ]
    return [
        *ratios,
        Contradiction(
            "largest AllReduce share",
            "%",
            values["C039"],
            values["C040"],
            "the abstract's number against the contributions' one",
            ("C039", "C040"),
        ),
        Contradiction(
            "GPT-2-Large's rate, mean over protocols, at most",
            "Gbps",
            values["C014"],
            (values["C007"] + values["C009"] + values["C011"]) / 3,
            "mean of the three ranges' upper ends",
            ("C014", "C007", "C009", "C011"),
        ),
        Contradiction(
            "RDMA rate while the AllReduce lasts",
            "Gbps",
            values["C007"],
            values["C007"] / (values["C003"] / 100),
            "mean rate / share of the time that the AllReduce takes: stated rates are averages",
            ("C007", "C003"),
        ),
        Contradiction(
            "largest batch of GPT-2-Large on 8 GPUs at 73 % share",
            "%",
            values["C113"],
            values["C019"],
            "a share that falls with the batch is below that of micro batch 4",
            ("C113", "C019", "C105"),
        ),
        Contradiction(
            "GPT-350M, bandwidth between nodes",
            "GB/s",
            values["C126"],
            values["C122"] / 1e3 * 7 / (8 * values["C127"] / 1e3),
            "the report's own formula: 700 MB x 7 / (8 x 62 ms)",
            ("C126", "C122", "C127"),
        ),
        *(
            Contradiction(
                f"{scheme} compression, gain of samples per second",
                "%",
                values[samples],
                values[tflops],
                "a sample has as many operations with compression as without: both gains are one",
                (samples, tflops),
            )
            for scheme, tflops, samples in _GAINS
        ),
    ]
