"""What ranks' monotonic clocks are ahead of rank 0's, and times put on that one."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Times = TypeVar("_Times", float, NDArray[np.float64])


@dataclass(frozen=True)
class ClockOffset:
    """What a rank's monotonic clock is ahead of rank 0's.

    Attributes
    ----------
    at_s
        When, on the rank's own clock.
    offset_s
        The rank's clock minus rank 0's; negative if it is behind.
    uncertainty_s
        The most that `offset_s` can be wrong by: half of the round trip.
    """

    at_s: float
    offset_s: float
    uncertainty_s: float


def on_rank0_clock(time_s: _Times, before: ClockOffset, after: ClockOffset) -> _Times:
    """Times on a rank's clock, as rank 0's clock would have shown them, in seconds.

    The offset is taken as linear in time through two measurements of this rank, so that clocks of
    different rates (by some parts per million) agree all along, not at one end only. Between the
    two the result is wrong by the larger of their uncertainties at most, as far as the rates are
    constant; before and after it is extrapolated.

    Raises
    ------
    ValueError
        `after` is not later than `before`.
    """
    if after.at_s <= before.at_s:
        raise ValueError(
            f"offsets measured at {before.at_s} s and {after.at_s} s: the second must be later"
        )
    drift = (after.offset_s - before.offset_s) / (after.at_s - before.at_s)
    return time_s - before.offset_s - drift * (time_s - before.at_s)
