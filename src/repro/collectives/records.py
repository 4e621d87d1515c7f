"""What a sweep of collectives is told, and what each of its ranks returns."""

from dataclasses import dataclass

from repro.catalog.studies.collectives import Element, Layout
from repro.collectives.definitions import PLACES


@dataclass(frozen=True)
class CollectiveSweep:
    """Collectives to measure on all ranks.

    Attributes
    ----------
    collectives
        Of `repro.collectives.definitions.COLLECTIVES`.
    sizes_bytes
        Ascending, as nccl-tests defines the size: of all ranks' data together for all_gather,
        reduce_scatter and all_to_all. What does not divide is rounded up to one element a rank.
    layouts
        The process groups, of which all communicate at once.
    ranks_per_node
        Of full nodes; ranks fill one node after another.
    dtype
        Of the elements.
    warmup
        Calls of each size before the first that is recorded, over the first turn's links.
    repeats, most_repeats
        Recorded measurements of each size, each of one or more calls: at least, and at most, until
        half of the 95 % interval of their mean is `half_interval` of it.
    longest_call_s
        A size of which a call takes longer is the collective's last.
    in_place
        Whether to measure in place too, where a collective can be called so.
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
        """Whether a collective is called in place, for all ways in which it is called."""
        return PLACES[collective] if self.in_place else (False,)

    @property
    def cases(self) -> int:
        """How many cases it has (layout, collective, place, size), skipped ones included."""
        places = sum(len(self.places(collective)) for collective in self.collectives)
        return len(self.layouts) * places * len(self.sizes_bytes)


@dataclass(frozen=True)
class Timing:
    """One collective of one size on one rank.

    Attributes
    ----------
    size_bytes
        What was moved, by nccl-tests' definition; `asked_bytes` is the sweep's size for it.
    calls
        Calls in each repeat, without a barrier between them.
    time_s
        One entry per repeat: its time on this rank, over `calls`.
    sent_bytes, received_bytes
        What this rank's network interface counted for one call of the first repeat, headers
        included; NaN where ranks share an interface or do not use one.
    """

    layout: Layout
    collective: str
    in_place: bool
    asked_bytes: int
    size_bytes: int
    calls: int
    time_s: tuple[float, ...]
    sent_bytes: float
    received_bytes: float


@dataclass(frozen=True)
class SweepRecord:
    """What one rank measured. `group_ranks` is the size of its process group, by layout."""

    rank: int
    group_ranks: dict[Layout, int]
    measurements: tuple[Timing, ...]
