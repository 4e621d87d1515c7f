"""What carrying out one order gives: every rank's record, and what the networks counted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from repro.collectives.records import SweepRecord
from repro.observe.nic import NicSeries
from repro.testbed.speed import SpeedCheck
from repro.testbed.verify import LinkCheck
from repro.train.records import RankRecord


@dataclass(frozen=True)
class NodeAdapters:
    """Counters of a real node's adapters: `series` has a column for each of `names`.

    `failures` says why a counter stands still from some time on, by name.
    """

    host: str
    names: tuple[str, ...]
    series: NicSeries
    failures: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """One order's measurements: a record per rank, the NICs of the nodes, the links.

    `records` are those of training, `sweeps` those of collectives; the other is empty.
    `fabric_latency_s` is what was added: 0 where the kernel lacks netem. `links` are checked on
    the testbed only, as is `speed`. All times are on rank 0's clock.

    `spent_s` is where the time went: starting ranks and checking links count for the first of what
    takes turns.

    Of real nodes only: `adapters`, one entry per node; `needed_bytes`, what each node's ranks had
    to send to other nodes at least while iterations were recorded; `ran_on`, what computed and
    communicated.
    """

    records: tuple[RankRecord, ...]
    nics: NicSeries
    links: tuple[LinkCheck, ...]
    fabric_latency_s: float
    sweeps: tuple[SweepRecord, ...] = ()
    speed: SpeedCheck | None = None
    adapters: tuple[NodeAdapters, ...] = ()
    needed_bytes: tuple[float, ...] = ()
    ran_on: Mapping[str, object] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OutOfMemory:
    """A rank's memory was not enough for the run: a result, not a failure."""

    rank: int
    message: str
