"""ZeRO and hierarchical ZeRO: groups that shard each state, and what that moves and holds.

Every state is sharded across a group of neighbouring ranks, and the groups are nested:

    weights (W ranks)  <=  gradients (G)  <=  optimizer states (O)  <=  all ranks (N)

For each unit (a layer, or the modules around the layers) a rank holds 1/W of the weights, sums 1/G
of the gradients, and steps 1/O. ZeRO-1, 2 and 3 (Rajbhandari et al., SC 2020) are (1, 1, N),
(1, N, N) and (N, N, N). MiCS (Zhang et al., VLDB 2022) is (node, node, node). hpZ of ZeRO++ (Wang
et al., 2023) is ZeRO-3 with a second copy of the weights inside each node. The three levels of the
Frontier abstract are (GCD pair, node, N).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from repro.catalog.models.papers import Shape
from repro.catalog.reading import Entry
from repro.catalog.systems.topology import Topology
from repro.errors import ReproError

# Gradients are summed in fp32. Adam holds an fp32 copy of the weights and two moments.
ACCUMULATOR_BYTES, OPTIMIZER_BYTES = 4, 12
# Elements per block of a quantised collective, and bytes of the block's scale (fp32).
BLOCK, SCALE_BYTES = 256, 4
_FP32 = 4

Span = Literal["gpu", "package", "node", "all"]


class Scheme(Entry):
    """Group that shards each state: one GPU (no sharding), a package, a node, or `all` ranks.

    Attributes
    ----------
    weights, gradients, optimizer
        As in the module's docstring.
    secondary
        Group that keeps a second copy of gathered weights for the backward pass (hpZ).
    int8_weights
        Whether weights are gathered as 8-bit integers with one scale per block (qwZ).
    int4_gradients
        Whether gradients are summed by all-to-alls of 4-bit integers, inside nodes first (qgZ).
    """

    label: str
    weights: Span
    gradients: Span
    optimizer: Span
    secondary: Span | None = None
    int8_weights: bool = False
    int4_gradients: bool = False

    def on(self, topology: Topology, ranks: int) -> "Partition":
        """Return the groups of this scheme among ranks that fill the topology's nodes in order.

        If nodes have no packages, a package is the node.

        Raises
        ------
        ReproError
            The groups do not divide the ranks.
        """
        node = topology.gpus_per_node
        package = topology.levels[0].members if len(topology.levels) > 2 else node
        sizes = {"gpu": 1, "package": package, "node": node, "all": ranks}
        weights, gradients, optimizer = (
            min(sizes[span], ranks) for span in (self.weights, self.gradients, self.optimizer)
        )
        secondary = min(sizes[self.secondary], ranks) if self.secondary else 0
        return Partition(
            ranks,
            weights,
            gradients,
            optimizer,
            secondary=secondary if secondary < weights else 0,
            node=min(node, ranks),
            int8_weights=self.int8_weights,
            int4_gradients=self.int4_gradients,
        ).checked()


@dataclass(frozen=True)
class Partition:
    """Group sizes of a scheme: ranks that each state is sharded across, `node` of them per node.

    `secondary` is the size of the groups that keep a second copy of weights; 0 keeps none.
    """

    ranks: int
    weights: int
    gradients: int
    optimizer: int
    secondary: int = 0
    node: int = 1
    int8_weights: bool = False
    int4_gradients: bool = False

    def checked(self) -> "Partition":
        """Return this partition after checking it.

        Raises
        ------
        ReproError
            A group is not a whole number of the groups inside it.
        """
        nested = {
            "secondary": self.secondary or 1,
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "ranks": self.ranks,
        }
        names = list(nested)
        for inner, outer in pairwise(names):
            if nested[inner] < 1 or nested[outer] % nested[inner]:
                raise ReproError(
                    f"{outer} {nested[outer]} is not a multiple of {inner} {nested[inner]}; "
                    "fix: choose another number of ranks or another scheme"
                )
        return self


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and reduced together, each as (rows, elements).

    `count` units are identical. The modules around the layers are needed until the backward pass
    begins, so they are not `gathered_again` for it.
    """

    parameters: tuple[tuple[int, int], ...]
    count: int = 1
    gathered_again: bool = True

    @property
    def elements(self) -> int:
        """Elements of one unit."""
        return sum(elements for _, elements in self.parameters)


def gpt_units(shape: Shape) -> tuple[Unit, ...]:
    """Return the layers of a GPT, and its embeddings with the last norm."""
    h, f = shape.hidden_size, shape.ffn_hidden_size
    norms = ((h, h),) * 4
    attention = ((h, h * h), (h, h), (3 * h, 3 * h * h), (3 * h, 3 * h))
    mlp = ((f, h * f), (f, f), (h, h * f), (h, h))
    tables = tuple((rows, rows * h) for rows in (shape.vocabulary_size, shape.sequence_length))
    around = Unit((*tables, (h, h), (h, h)), gathered_again=False)
    return Unit(norms + attention + mlp, shape.layers), around


@dataclass(frozen=True)
class ShardSizes:
    """Elements of a unit that a rank holds as weights, sums as gradients, and steps.

    `gathered` counts the whole unit, with padding to equal shards. FSDP2 splits each parameter by
    rows into equal shards; the flattened result is split into equal shards again.
    """

    gathered: int
    weights: int
    gradients: int
    optimizer: int


def shard_sizes(partition: Partition, unit: Unit) -> ShardSizes:
    """Return a rank's shard sizes of a unit."""
    w = partition.weights
    rows = sum(-(-rows // w) * (elements // rows) for rows, elements in unit.parameters)
    gradients = -(-rows // (partition.gradients // w))
    stepped = -(-gradients // (partition.optimizer // partition.gradients))
    return ShardSizes(rows * w, rows, gradients, stepped)


def held_bytes(partition: Partition, units: Sequence[Unit], element_bytes: int) -> dict[str, int]:
    """Return the bytes that a rank holds, by state.

    The second copy exists from the forward to the backward pass. Gathered weights, activations and
    buffers are not included.
    """
    held = dict.fromkeys(("weights", "second copy", "gradients", "optimizer states"), 0)
    for unit in units:
        sizes = shard_sizes(partition, unit)
        held["weights"] += unit.count * sizes.weights * element_bytes
        if partition.secondary and unit.gathered_again:
            copy = sizes.gathered // partition.secondary
            held["second copy"] += unit.count * copy * element_bytes
        held["gradients"] += unit.count * sizes.gradients * ACCUMULATOR_BYTES
        held["optimizer states"] += unit.count * sizes.optimizer * OPTIMIZER_BYTES
    return held


@dataclass(frozen=True)
class Collective:
    """Collective of a group of `ranks` ranks that are `stride` apart.

    `size_bytes` uses nccl-tests' definition. `quantised` counts the elements that the rank converts
    to integers or back.
    """

    operation: str
    ranks: int
    stride: int
    size_bytes: int
    quantised: int = 0

    @property
    def members(self) -> range:
        """Ranks of the first such group."""
        return range(0, self.ranks * self.stride, self.stride)


@dataclass(frozen=True)
class UnitTraffic:
    """Collectives of one unit.

    Every micro batch has `forward` and `backward` (weights) and `reduce` (gradients). Every
    iteration has `synchronise` and `update`, before and after the optimizer.
    """

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]
    reduce: tuple[Collective, ...]
    synchronise: tuple[Collective, ...]
    update: tuple[Collective, ...]


def unit_traffic(
    partition: Partition, unit: Unit, element_bytes: int, gradient_bytes: int
) -> UnitTraffic:
    """Return the collectives that a rank calls for one unit, without groups of one rank."""
    sizes = shard_sizes(partition, unit)
    w, g, o = partition.weights, partition.gradients, partition.optimizer
    again = partition.secondary or w

    def gather(ranks: int, stride: int, elements: int) -> Collective:
        """Gather weights; `elements` is the sum over all ranks."""
        if not partition.int8_weights:
            return Collective("all_gather", ranks, stride, elements * element_bytes)
        size = ranks * quantised_bytes(elements // ranks, 8)
        return Collective("all_gather", ranks, stride, size, elements)

    def reduce(ranks: int, stride: int, part: int) -> Iterator[Collective]:
        """Sum gradients, of which each rank gets a `part`."""
        if not partition.int4_gradients:
            yield Collective("reduce_scatter", ranks, stride, ranks * part * gradient_bytes)
            return
        for along, apart, rows in hops(partition, ranks, stride):
            size = along * quantised_bytes(rows * part, 4)
            yield Collective("all_to_all", along, apart, size, 2 * along * rows * part)

    def used(calls: Iterator[Collective]) -> tuple[Collective, ...]:
        return tuple(call for call in calls if call.ranks > 1)

    replicas = partition.ranks // o
    between_replicas = Collective("all_reduce", replicas, o, sizes.optimizer * gradient_bytes)
    return UnitTraffic(
        forward=used(iter([gather(w, 1, sizes.gathered)])),
        backward=used(iter([gather(again, 1, sizes.gathered)] * unit.gathered_again)),
        reduce=used(iter([*reduce(w, 1, sizes.weights), *reduce(g // w, w, sizes.gradients)])),
        synchronise=used(iter([*reduce(o // g, g, sizes.optimizer), between_replicas])),
        update=used(
            Collective("all_gather", ranks, stride, ranks * part * element_bytes)
            for ranks, stride, part in ((o // g, g, sizes.optimizer), (g // w, w, sizes.gradients))
        ),
    )


def hops(partition: Partition, ranks: int, stride: int) -> list[tuple[int, int, int]]:
    """Return the all-to-alls that sum over a group: inside nodes, then between them (qgZ).

    Each one is the number of ranks that exchange, their stride, and the number of later ranks that
    each exchanged part is for.
    """
    inside = math.gcd(ranks, max(1, partition.node // stride))
    return [(inside, stride, ranks // inside), (ranks // inside, stride * inside, 1)]


def quantised_bytes(elements: int, bits: int) -> int:
    """Return the size of elements as integers with one scale per block; the last is padded."""
    return -(-elements // BLOCK) * (BLOCK * bits // 8 + SCALE_BYTES)


@dataclass(frozen=True)
class Calls:
    """Identical collectives of one rank in one iteration, in a phase of `repro.catalog.phases`."""

    phase: str
    collective: Collective
    calls: int


def iteration_calls(
    partition: Partition,
    units: Sequence[Unit],
    micro_batches: int,
    element_bytes: int,
    gradient_bytes: int,
) -> tuple[Calls, ...]:
    """Return all calls of a rank in one iteration, without barriers.

    The last call sums the gradients' norm, one number, over the ranks that shard the optimizer
    states.
    """
    found = []
    for unit in units:
        traffic = unit_traffic(partition, unit, element_bytes, gradient_bytes)
        for phase, times, calls in (
            ("parameter all-gather", micro_batches, (*traffic.forward, *traffic.backward)),
            ("gradient sync", micro_batches, traffic.reduce),
            ("gradient sync", 1, traffic.synchronise),
            ("parameter all-gather", 1, traffic.update),
        ):
            found += [Calls(phase, call, unit.count * times) for call in calls]
    if partition.optimizer > 1:
        found.append(Calls("optimizer", Collective("all_reduce", partition.optimizer, 1, _FP32), 1))
    return tuple(found)
