"""Speed of an emulated GPU: its CPU share, and the check that ranks keep it.

A rank computes in passes. After each it sleeps until CPU time / CPU share has elapsed
(`repro.train.pacing`). That needs no privilege, and no state of the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.errors import ReproError
from repro.observe.environment import usable_cores

# Fraction of the cores for the network stack and for the sampling of counters.
RESERVED_SHARE = 0.2
TOLERANCE = 0.05
# The machine's own speed drifts between the rounds of one rank and of all.
_DRIFT = 0.1


def cores_per_rank(ranks: int) -> float:
    """Return the CPU share of each of `ranks` emulated GPUs, in cores of this machine.

    All experiments of a cluster have the share of their largest number of ranks, so that two ranks
    compute as fast as eight.
    """
    share = (1 - RESERVED_SHARE) * usable_cores() / ranks
    return min(1.0, int(share * 1000) / 1000)


@dataclass(frozen=True)
class Passes:
    """Passes of the same work on one rank: wall time and CPU time of each, in seconds."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]


@dataclass(frozen=True)
class SpeedCheck:
    """Speed of the ranks before they were measured.

    `cores` is the CPU share of each. `late` is the excess of the slowest rank's median pass over
    CPU time / share, as a fraction. `all_to_one` is the time of a rank's passes while all ranks are
    measured, over their time while it alone is.
    """

    cores: float
    late: float
    all_to_one: float


def verify_speed(cores: float, turns: Sequence[tuple[Passes, Sequence[Passes]]]) -> SpeedCheck:
    """Check that ranks keep their CPU share, and that one computes as fast as all do.

    Parameters
    ----------
    cores : float
        CPU share of each rank.
    turns : sequence of tuples
        Passes of rank 0, measured while the others compute as ranks outside a run do. And passes of
        every rank, measured concurrently right after.

    Raises
    ------
    ReproError
        A rank's passes are more than 5 % late, or passes of one rank and of all differ by more than
        10 %; the message says which.
    """
    late = [
        float(np.median(np.concatenate([np.divide(p.wall_s, p.cpu_s) for p in passes])) * cores - 1)
        for passes in zip(*(together for _, together in turns), strict=True)
    ]
    worst = int(np.argmax(late))
    if late[worst] > TOLERANCE:
        raise ReproError(
            f"rank {worst} cannot keep its pace of {cores:g} cores: its passes are "
            f"{late[worst]:.0%} late, more than {TOLERANCE:.0%}; other work may be using this "
            "machine, or a container may be allowed fewer cores than it sees; fix: stop that "
            "work, or name fewer cores with `taskset`"
        )
    # One ratio per round, so that a machine whose speed drifts is compared with itself.
    ratio = float(
        np.median([np.median(all_[0].wall_s) / np.median(one.wall_s) for one, all_ in turns])
    )
    if abs(ratio - 1) > _DRIFT:
        raise ReproError(
            f"rank 0 takes {ratio:.2f} times as long for the same passes while all ranks are "
            f"measured as while it alone is, more than {_DRIFT:.0%} off; other work may be using "
            "this machine; fix: stop it"
        )
    return SpeedCheck(cores, late[worst], ratio)
