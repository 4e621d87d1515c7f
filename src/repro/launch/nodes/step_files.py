"""What the ranks of a step on real nodes read and leave in its folder."""

from dataclasses import dataclass
from pathlib import Path

from repro.collectives.records import CollectiveSweep, SweepRecord
from repro.launch.messages import Order
from repro.observe.clock_offsets import ClockOffset
from repro.results.outcome import NodeAdapters
from repro.train.records import RankRecord, TrainingRun

STEP, PROGRESS = "step.pkl", "progress"


@dataclass(frozen=True)
class Step:
    """What the ranks of a step read.

    `adapters` are those to use for the protocol; none: all that suit.
    """

    order: Order[TrainingRun] | Order[CollectiveSweep]
    protocol: str
    adapters: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What a rank did, on its own clock.

    Attributes
    ----------
    record
        What it measured.
    clock
        What its clock was ahead of rank 0's, before the work and after it.
    host
        Its node.
    used
        Adapters of the protocol on its node.
    kinds
        Of the node's interfaces, by name.
    adapters
        The node's counters meanwhile; from one rank of each node, None from the others.
    accelerator
        What computes and what communicates, with versions.
    """

    record: RankRecord | SweepRecord
    clock: tuple[ClockOffset, ClockOffset]
    host: str
    used: tuple[str, ...]
    kinds: dict[str, str]
    adapters: NodeAdapters | None
    accelerator: dict[str, str]


def answer_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves its `Answer`, `Failure` or `OutOfMemory`."""
    return folder / f"rank{rank}.pkl"


def log_path(folder: Path, rank: int) -> Path:
    """What a rank prints."""
    return folder / f"rank{rank}.log"


def nccl_log_path(folder: Path, rank: int) -> Path:
    """What NCCL says of a rank."""
    return folder / f"nccl{rank}.log"
