"""What jobs, steps and ranks on real nodes read and leave in their folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.catalog.systems.nodes import Nodes
from repro.collectives.records import CollectiveSweep, SweepRecord
from repro.launch.cases import Case
from repro.launch.journal import Journal
from repro.launch.messages import Order
from repro.observe.clock_offsets import ClockOffset
from repro.results.outcome import NodeAdapters
from repro.train.records import RankRecord, TrainingRun

WORK = "work.pkl"


@dataclass(frozen=True)
class Work:
    """What the jobs of one number of nodes do: `shares` has the cases of each element of the array.

    `python` is the command that runs Python in a rank, `number` the number of nodes.
    """

    shares: tuple[tuple[Case[Any], ...], ...]
    number: int
    nodes: Nodes
    journal: Journal
    python: tuple[str, ...]


def progress_path(folder: Path, element: int) -> Path:
    """Where an element says how far it is: a JSON list of a case's label and its steps."""
    return folder / f"progress-{element}.json"


def missing_path(folder: Path, element: int) -> Path:
    """Where an element names the protocols that its nodes cannot use, with the reasons."""
    return folder / f"missing-{element}.json"


def failure_path(folder: Path, element: int) -> Path:
    """Where an element says why it gave up."""
    return folder / f"failure-{element}.txt"


def shares(cases: Sequence[Case[Any]], jobs: int) -> tuple[tuple[Case[Any], ...], ...]:
    """Deal cases to at most so many jobs; the values of a sweep stay together, in their order."""
    series = {case.series or (case.label,): None for case in cases}
    number = {key: at for at, key in enumerate(series)}
    count = min(jobs, len(series))
    return tuple(
        tuple(case for case in cases if number[case.series or (case.label,)] % count == element)
        for element in range(count)
    )


@dataclass(frozen=True)
class Step:
    """What ranks are told to do next.

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


def step_path(folder: Path, number: int) -> Path:
    """Where ranks find their next `Step`, or None: there is none."""
    return folder / f"step{number}.pkl"


def done_path(folder: Path, number: int) -> Path:
    """Where rank 0 says how far it is in a step."""
    return folder / f"done{number}"


def answer_path(folder: Path, number: int, rank: int) -> Path:
    """Where a rank leaves its `Answer`, `Failure` or `OutOfMemory` of a step."""
    return folder / f"answer{number}-rank{rank}.pkl"


def log_path(folder: Path, rank: int) -> Path:
    """What a rank prints."""
    return folder / f"rank{rank}.log"


def nccl_log_path(folder: Path, rank: int) -> Path:
    """What NCCL says of a rank."""
    return folder / f"nccl{rank}.log"
