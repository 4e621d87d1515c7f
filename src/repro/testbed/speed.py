"""The speed of an emulated GPU: a share of this machine's cores, and the proof that it holds.

A rank computes in passes, each held back until its CPU time is over at the pace of its share
(`repro.train.pacing`). That needs no privilege, and no state of the system.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repro.errors import ReproError
from repro.observe.environment import usable_cores

# What the ranks leave to the network stack and to the sampling of counters.
RESERVED_SHARE = 0.2
TOLERANCE = 0.05
# The machine's own speed drifts between the turns of one rank and of all.
_DRIFT = 0.1


def cores_per_rank(ranks: int) -> float:
    """The share of each of `ranks` emulated GPUs, in cores of this machine.

    It belongs to a cluster's experiments, from the largest number of ranks in them, so that two
    ranks compute as fast as eight.
    """
    share = (1 - RESERVED_SHARE) * usable_cores() / ranks
    return min(1.0, int(share * 1000) / 1000)


@dataclass(frozen=True)
class Passes:
    """Passes of the same work on one rank: seconds each took, and seconds of CPU it needed."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]


@dataclass(frozen=True)
class SpeedCheck:
    """How ranks computed before they were measured.

    `cores` is the share of each; `late` by how much the slowest rank's median pass was longer than
    its CPU time at that share, and `all_to_one` what passes of one rank take while all are
    measured, as a multiple of what they take while it alone is.
    """

    cores: float
    late: float
    all_to_one: float


def verify_speed(cores: float, turns: Sequence[tuple[Passes, Sequence[Passes]]]) -> SpeedCheck:
    """Show that ranks keep their pace, and that one computes as fast as all do.

    Parameters
    ----------
    cores : float
        The share of each rank.
    turns : sequence of tuples
        Passes of rank 0, measured while the others compute as those without a part in a run do; and
        of every rank, measured at the same time right after.

    Raises
    ------
    ReproError
        A rank's passes are more than 5 % later than its pace, or those of one rank and of all
        differ by more than 10 %; the message says which.
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
            "machine, or a container may be allowed fewer cores than it sees: stop that work, or "
            "name fewer cores with `taskset`"
        )
    # Turn by turn, so that a machine whose speed drifts is compared with itself.
    ratio = float(
        np.median([np.median(all_[0].wall_s) / np.median(one.wall_s) for one, all_ in turns])
    )
    if abs(ratio - 1) > _DRIFT:
        raise ReproError(
            f"rank 0 takes {ratio:.2f} times as long for the same passes while all ranks are "
            f"measured as while it alone is, more than {_DRIFT:.0%} off; other work may be using "
            "this machine: stop it"
        )
    return SpeedCheck(cores, late[worst], ratio)
