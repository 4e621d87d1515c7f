"""Inference of a run's collective and ranks from its printed columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.collectives.definitions import bus_factor
from repro.logs.measurements import check

# Operator of the all-to-all of early versions, the only test that leaves this column blank.
BLANK_OPERATOR = "blank"
WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
# Rounding error of a printed bandwidth (two decimals), and an upper limit of the number of ranks.
_ROUNDING, _MOST_RANKS = 0.005, 1 << 16


@dataclass(frozen=True)
class Timing:
    """Timing of one size, in or out of place.

    `root` is -1 for collectives without one; `checked` is whether the results were verified.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    in_place: bool
    time_us: float
    algbw: float
    busbw: float
    checked: bool

    def __post_init__(self) -> None:
        """Raise a ValueError if the size or the time is not that of a measurement."""
        check(self.size_bytes, self.time_us)


def ranks_from_bandwidths(
    factors: NDArray[np.float64], algbw: Sequence[float], busbw: Sequence[float]
) -> list[int]:
    """Return the numbers of ranks that match all ratios of bus to algorithm bandwidth.

    Parameters
    ----------
    factors : ndarray
        Ratio for 1, 2, ... ranks.
    algbw, busbw
        Printed with two decimals, in any unit.
    """
    low, high = _ratio(algbw, busbw)
    found: list[int] = (np.flatnonzero((factors >= low) & (factors <= high)) + 1).tolist()
    return found


def rank_counts() -> NDArray[np.float64]:
    """Return the numbers of ranks that are considered: 1, 2, ..."""
    return np.arange(1, _MOST_RANKS + 1, dtype=float)


def _ratio(algbw: Sequence[float], busbw: Sequence[float]) -> tuple[float, float]:
    """Return the range of bus over algorithm bandwidth that all rows have."""
    a, b = np.array(algbw), np.array(busbw)
    visible = a > _ROUNDING
    low = ((b - _ROUNDING)[visible] / (a + _ROUNDING)[visible]).max(initial=0.0)
    high = ((b + _ROUNDING)[visible] / (a - _ROUNDING)[visible]).min(initial=np.inf)
    return float(low), float(high)


def implied_ranks(name: str, timings: Sequence[Timing]) -> list[int] | None:
    """Return the numbers of ranks that match all rows of a run; None if the rows tell none.

    Until 2.0.0 the two bandwidths of a gather or a scatter were equal.
    """
    algbw, busbw = [t.algbw for t in timings], [t.busbw for t in timings]
    factors = bus_factor(name, rank_counts())
    low, high = _ratio(algbw, busbw)
    equal = name != "all_reduce" and low <= 1 <= high
    if max(algbw) <= _ROUNDING or equal or factors[0] == factors[-1]:
        return None
    return ranks_from_bandwidths(factors, algbw, busbw) or None


def shards(timings: Sequence[Timing]) -> int | None:
    """Return into how many parts each size is divided by its count; None if that differs."""
    parts = {
        t.size_bytes // (t.count * WIDTHS[t.dtype])
        for t in timings
        if t.dtype in WIDTHS and t.count > 0 and t.size_bytes % (t.count * WIDTHS[t.dtype]) == 0
    }
    return parts.pop() if len(parts) == 1 else None


def infer_collective(timings: Sequence[Timing], ranks: int | None) -> str | None:
    """Return the only collective that matches a run's columns; None if several match.

    Only a broadcast or a reduction has a root. Bus over algorithm bandwidth is above 1 only for
    all_reduce, and below 1 only if the data are sharded; then `count` is a rank's part of the size.
    Tests that cannot run in place leave in-place results unchecked and check the others.
    """
    largest = max(timings, key=lambda timing: timing.busbw)
    reduces = largest.redop not in ("", "none", BLANK_OPERATOR)
    if largest.redop == BLANK_OPERATOR:
        return "all_to_all"
    in_place = any(timing.checked for timing in timings if timing.in_place)
    verified = in_place or any(timing.checked for timing in timings)
    two_places = verified and any(timing.in_place for timing in timings)
    parts = shards(timings)
    sharded = parts is not None and parts > 1 and ranks in (None, parts)
    if largest.root >= 0:
        return None if sharded else "reduce" if reduces else "broadcast"
    low, high = _ratio([largest.algbw], [largest.busbw])
    if low > 1:
        return "all_reduce"
    if sharded or high < 1:
        if reduces:
            return "reduce_scatter"
        return ("all_gather" if in_place else "all_to_all") if two_places else None
    if parts != 1 or ranks == 1:
        return None
    if ranks is not None and ranks > 2 and high < 4 / 3:
        return "send_recv"  # the factor of all_reduce is at least 4/3
    if not two_places:
        return None
    if not in_place:
        return "send_recv"
    # Equal bandwidths: the factor of all_reduce is 1 only on two ranks.
    return "all_reduce" if reduces and (ranks == 2 or (ranks is None and high < 4 / 3)) else None
