"""Raw measurement of one request: every rank's record, NIC counters and link checks."""

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

    `failures` has the reason why a counter stopped, by name.
    """

    host: str
    names: tuple[str, ...]
    series: NicSeries
    failures: Mapping[str, str]


@dataclass(frozen=True)
class Outcome:
    """Measurements of one request: a record per rank, the NICs of the nodes, the links.

    `records` are those of training, `sweeps` those of collectives; the other is empty.
    `fabric_latency_s` is the added latency, 0 where the kernel lacks netem. The testbed alone
    checks `links` and `speed`. All times are on rank 0's clock.

    `spent_s` is where the time went. Starting ranks and checking links count for the first of
    several interleaved requests.

    Real nodes have `adapters`, one entry per node; `min_inter_node_bytes`, the least that each
    node's ranks had to send to other nodes while iterations were recorded; and `ran_on`, the
    devices and software.
    """

    records: tuple[RankRecord, ...]
    nics: NicSeries
    links: tuple[LinkCheck, ...]
    fabric_latency_s: float
    sweeps: tuple[SweepRecord, ...] = ()
    speed: SpeedCheck | None = None
    adapters: tuple[NodeAdapters, ...] = ()
    min_inter_node_bytes: tuple[float, ...] = ()
    ran_on: Mapping[str, object] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OutOfMemory:
    """A rank ran out of memory, which is a result and not a failure."""

    rank: int
    message: str
