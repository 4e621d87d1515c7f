"""Configuration of a sweep of collectives, and the records that its ranks return."""

from dataclasses import dataclass

from repro.catalog.studies.collectives import Element, Layout
from repro.collectives.definitions import PLACES


@dataclass(frozen=True)
class CollectiveSweep:
    """Collectives to measure on all ranks.

    Attributes
    ----------
    collectives
        Names in `repro.catalog.studies.collectives.COLLECTIVES`.
    sizes_bytes
        Ascending sizes by nccl-tests' definition: of all ranks' data together for all_gather,
        reduce_scatter and all_to_all. Sizes are rounded up to full elements per rank.
    layouts
        Process groups; all groups of a layout communicate at once.
    ranks_per_node
        Ranks of a full node; ranks fill one node after another.
    dtype
        Element type.
    warmup
        Calls of each size before the first recorded one, with the links of the first run.
    repeats, most_repeats
        Minimum and maximum number of recorded repeats of each size, each of one or more calls.
        Repeats end when half of the 95 % interval of their mean is `half_interval` times the mean.
    longest_call_s
        Maximum time of one call: a collective's sizes end with the first that exceeds it.
    in_place
        Whether to measure in place too, if the collective supports it.
    """

    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    layouts: tuple[Layout, ...]
    ranks_per_node: int
    dtype: Element
    warmup: int
    repeats: int
    most_repeats: int
    longest_call_s: float
    half_interval: float = 0.02
    in_place: bool = True

    def places(self, collective: str) -> tuple[bool, ...]:
        """Return the values of `in_place` with which a collective is measured."""
        return PLACES[collective] if self.in_place else (False,)

    @property
    def configurations(self) -> int:
        """Number of combinations (layout, collective, place, size), including skipped ones."""
        places = sum(len(self.places(collective)) for collective in self.collectives)
        return len(self.layouts) * places * len(self.sizes_bytes)


@dataclass(frozen=True)
class Timing:
    """Times of one collective of one size on one rank.

    Attributes
    ----------
    requested_bytes, size_bytes
        Size in the sweep's configuration, and size after rounding, by nccl-tests' definition.
    calls
        Calls in each repeat, without a barrier between them.
    time_s
        Time per call of each repeat on this rank, in seconds.
    sent_bytes, received_bytes
        Bytes per call of the first repeat, including headers, by the counters of this rank's
        network interface. NaN if ranks share an interface or use none.
    """

    layout: Layout
    collective: str
    in_place: bool
    requested_bytes: int
    size_bytes: int
    calls: int
    time_s: tuple[float, ...]
    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True)
class SweepRecord:
    """Measurements of one rank; `group_ranks` is the size of its process group by layout."""

    rank: int
    group_ranks: dict[Layout, int]
    measurements: tuple[Timing, ...]
