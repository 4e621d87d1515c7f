"""Clock offsets between each rank and rank 0, and conversion of times to rank 0's clock."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Times = TypeVar("_Times", float, NDArray[np.float64])


@dataclass(frozen=True)
class ClockOffset:
    """Offset of a rank's monotonic clock from rank 0's.

    Attributes
    ----------
    at_s
        Time of the measurement on the rank's own clock, in seconds.
    offset_s
        The rank's clock minus rank 0's; negative if the rank's clock is behind.
    uncertainty_s
        Largest possible error of `offset_s`: half of the round trip.
    """

    at_s: float
    offset_s: float
    uncertainty_s: float


def on_rank0_clock(time_s: _Times, before: ClockOffset, after: ClockOffset) -> _Times:
    """Convert times on a rank's clock to rank 0's clock, in seconds.

    The offset is linear in time through two measurements of this rank, because clock rates differ
    by some parts per million. For constant rates, the error between the two measurements is at
    most the larger of their uncertainties. Times before or after them are extrapolated.

    Raises
    ------
    ValueError
        `after` is not later than `before`.
    """
    if after.at_s <= before.at_s:
        raise ValueError(
            f"offsets measured at {before.at_s} s and {after.at_s} s: the second must be later; "
            "fix: pass the earlier one as `before`"
        )
    drift = (after.offset_s - before.offset_s) / (after.at_s - before.at_s)
    return time_s - before.offset_s - drift * (time_s - before.at_s)
