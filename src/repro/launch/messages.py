"""What the user's process, the supervisor of a set of ranks and the ranks say to each other.

All of it is pickled through pipes between processes of one machine.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from repro.catalog.models.papers import Family
from repro.catalog.systems.topology import Topology
from repro.collectives.records import CollectiveSweep
from repro.train.records import TrainingRun


@dataclass(frozen=True)
class Site:
    """Where to start ranks.

    One rank per GPU of the topology, each in its own namespace; or, with no topology, `ranks` that
    meet on the loopback. `cores` is each rank's share of this machine, at whose pace it computes;
    None: ranks compute as fast as they can.
    """

    topology: Topology | None
    ranks: int
    cores: float | None


@dataclass(frozen=True)
class Ready:
    """All ranks are up, and keep their pace."""


Work = TypeVar("Work", TrainingRun, CollectiveSweep)


def groups_of(work: TrainingRun | CollectiveSweep) -> tuple[int, Family, int, int]:
    """Pipeline stages that ranks form for it, of which family's models, of how many ranks each, and
    over how many replicas their experts are spread."""
    if isinstance(work, TrainingRun):
        return (
            work.pipeline_parallel,
            work.family,
            work.tensor_parallel,
            work.expert_parallel,
        )
    return 1, "gpt", 1, 1


@dataclass(frozen=True)
class Order(Generic[Work]):
    """Train one configuration, or measure collectives, on the first `ranks` ranks.

    Links have the rates `rates_gbps`, by level.

    `fabric_latency_s` is added to the way between nodes where the kernel can. `memory_bytes` is
    what each rank may take beside what it holds when the run begins; empty: no limit. Rates and
    latency are right where one rank takes `passes_s` for a micro batch of the whole model: ranks
    that take longer have slower links.
    """

    run: Work
    ranks: int
    rates_gbps: dict[str, float]
    fabric_latency_s: float = 0.0
    memory_bytes: tuple[int, ...] = ()
    passes_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Join:
    """Supervisor to rank: meet `ranks` ranks at this address, then work; `scratch` is theirs.

    The same work is done in `turns` turns, each over links of its own; training with
    `microbatches` of its own too. `memory_bytes` is what the rank may take in it; None: no limit.
    `passes_s` are the order's.
    """

    ranks: int
    address: str
    port: int
    run: TrainingRun | CollectiveSweep
    turns: int
    microbatches: tuple[int, ...]
    scratch: Path
    memory_bytes: int | None
    passes_s: tuple[float, ...]


@dataclass(frozen=True)
class BeginTurn:
    """Rank 0 to supervisor: it is this turn's, on links so many times slower than the order says;
    supervisor to all ranks: links are as they should be."""

    turn: int
    slower: float


@dataclass(frozen=True)
class MeasurePasses:
    """Supervisor to rank: compute some passes of the same work, and answer with their times."""


@dataclass(frozen=True)
class StayBusy:
    """Supervisor to rank: you have no part in this order; compute until the next message.

    Cores that idle between few ranks' turns cool their caches and clocks, and those ranks then
    compute up to half slower than many do. With all shares in use, every order meets the same
    machine.
    """


@dataclass(frozen=True)
class Rest:
    """Supervisor to rank: the order is over."""


@dataclass(frozen=True)
class Progress:
    """So many iterations, or cases of a sweep, are done; and what goes on beside them."""

    steps: int
    words: str = ""


@dataclass(frozen=True)
class Waiting:
    """Supervisor to user: a check before anything is measured does not pass yet, and why."""

    words: str


@dataclass(frozen=True)
class Failure:
    """It did not work, and this is why, in words for the user.

    `unavailable` says that this machine cannot do it at all.
    """

    message: str
    unavailable: bool = False
