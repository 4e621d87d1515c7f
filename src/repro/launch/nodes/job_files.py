"""What a Slurm job reads and leaves in its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.catalog.nodes import Nodes
from repro.launch.cases import Case
from repro.launch.journal import Journal

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
