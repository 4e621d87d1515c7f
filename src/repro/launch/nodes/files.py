"""Files through which the user's process, jobs, steps and ranks of real nodes communicate."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.catalog.systems.nodes import Nodes
from repro.collectives.records import SweepRecord
from repro.launch.request import Request
from repro.launch.store import Store
from repro.observe.clock_offsets import ClockOffset
from repro.results.outcome import NodeAdapters
from repro.train.records import RankRecord

WORK = "work.pkl"


@dataclass(frozen=True)
class Work:
    """Requests of the jobs on one number of nodes; `shares` has those of each array element.

    `python` is the command that runs Python in a rank, `number` the number of nodes.
    """

    shares: tuple[tuple[Request[Any], ...], ...]
    number: int
    nodes: Nodes
    store: Store
    python: tuple[str, ...]


def progress_path(folder: Path, element: int) -> Path:
    """Return the file of an element's progress: a JSON list of a request's label and its steps."""
    return folder / f"progress-{element}.json"


def missing_path(folder: Path, element: int) -> Path:
    """Return the file of the protocols that an element's nodes lack, with the reasons."""
    return folder / f"missing-{element}.json"


def failure_path(folder: Path, element: int) -> Path:
    """Return the file of an element's error."""
    return folder / f"failure-{element}.txt"


def shares(requests: Sequence[Request[Any]], jobs: int) -> tuple[tuple[Request[Any], ...], ...]:
    """Distribute requests among at most `jobs` jobs; values of a sweep stay together, in order."""
    series = list(dict.fromkeys(request.series for request in requests))
    count = min(jobs, len(series))
    return tuple(
        tuple(one for one in requests if series.index(one.series) % count == element)
        for element in range(count)
    )


@dataclass(frozen=True)
class Step:
    """Next request of the ranks; `adapters` are those to use, or none for all that suit."""

    request: Request[Any]
    adapters: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Measurements of one rank, on its own clock.

    Attributes
    ----------
    record
        Its measurements.
    clock
        Offset of its clock to that of rank 0, before and after the work.
    host
        Its node.
    used
        Adapters of the protocol on its node.
    kinds
        Kinds of the node's interfaces, by name.
    adapters
        The node's counters, from one rank of each node; None from the others.
    accelerator
        Compute device and communication backend, with versions.
    """

    record: RankRecord | SweepRecord
    clock: tuple[ClockOffset, ClockOffset]
    host: str
    used: tuple[str, ...]
    kinds: dict[str, str]
    adapters: NodeAdapters | None
    accelerator: dict[str, str]


def step_path(folder: Path, number: int) -> Path:
    """Return the file of the ranks' next `Step`; None in it ends them."""
    return folder / f"step{number}.pkl"


def done_path(folder: Path, number: int) -> Path:
    """Return the file of rank 0's progress in a step."""
    return folder / f"done{number}"


def answer_path(folder: Path, number: int, rank: int) -> Path:
    """Return the file of a rank's `Answer`, `Failure` or `OutOfMemory` of a step."""
    return folder / f"answer{number}-rank{rank}.pkl"


def log_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's output."""
    return folder / f"rank{rank}.log"


def nccl_log_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's NCCL log."""
    return folder / f"nccl{rank}.log"
