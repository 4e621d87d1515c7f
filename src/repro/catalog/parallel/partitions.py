"""Which ranks share weights, gradients and optimizer states of a model, and what that moves and
holds: ZeRO and its hierarchical forms in one description.

Every state is spread over a group of neighbouring ranks, groups inside groups:

    weights (W ranks)  <=  gradients (G)  <=  optimizer states (O)  <=  all ranks (N)

Of each unit (a layer, or what stands around the layers) a rank holds 1/W of the weights, sums 1/G
of the gradients, and steps 1/O. ZeRO-1, 2 and 3 (Rajbhandari et al., SC 2020) are (1, 1, N),
(1, N, N) and (N, N, N); MiCS (Zhang et al., VLDB 2022) is (node, node, node); hpZ of ZeRO++ (Wang
et al., 2023) is ZeRO-3 with a second copy of the weights inside each node; the three levels of
the Frontier abstract are (GCD pair, node, N).
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

# Gradients are summed in fp32; Adam has an fp32 copy of its weights and two moments.
ACCUMULATOR_BYTES, OPTIMIZER_BYTES = 4, 12
# Elements that share a scale, an fp32 number, where a collective's elements are quantised.
BLOCK, SCALE_BYTES = 256, 4
_FP32 = 4

Span = Literal["gpu", "package", "node", "all"]


class Scheme(Entry):
    """Where each state is spread: over nothing (`gpu`), the GPUs of a package, of a node, or `all`.

    Attributes
    ----------
    weights, gradients, optimizer
        As in the module's docstring.
    secondary
        Where a second copy of gathered weights stays for the backward pass (hpZ).
    int8_weights
        Whether weights are gathered as 8-bit integers with a scale for each block (qwZ).
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
        """Its groups among so many ranks, which fill the topology's nodes in order. Where nodes
        have no packages, the node stands for them.

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
    """A scheme's groups: how many ranks each state is spread over, `node` of them on a node.

    `secondary` is the size of the groups that keep a second copy of weights; 0: nobody does.
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
        """Itself.

        Raises
        ------
        ReproError
            A group is no whole number of the groups inside it.
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
                    f"{outer} {nested[outer]} does not divide into groups of {inner} "
                    f"{nested[inner]}; choose another number of ranks or another scheme"
                )
        return self


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and reduced together: (rows, elements) of each.

    `count` units are alike. What stands around the layers is needed from the beginning of the
    forward to that of the backward pass, and is not `gathered_again` in between.
    """

    parameters: tuple[tuple[int, int], ...]
    count: int = 1
    gathered_again: bool = True

    @property
    def elements(self) -> int:
        """Of one unit."""
        return sum(elements for _, elements in self.parameters)


def gpt_units(shape: Shape) -> tuple[Unit, ...]:
    """Layers of a GPT, and its embeddings with the last norm."""
    h, f = shape.hidden_size, shape.ffn_hidden_size
    norms = ((h, h),) * 4
    attention = ((h, h * h), (h, h), (3 * h, 3 * h * h), (3 * h, 3 * h))
    mlp = ((f, h * f), (f, f), (h, h * f), (h, h))
    tables = tuple((rows, rows * h) for rows in (shape.vocabulary_size, shape.sequence_length))
    around = Unit((*tables, (h, h), (h, h)), gathered_again=False)
    return Unit(norms + attention + mlp, shape.layers), around


@dataclass(frozen=True)
class Pieces:
    """Elements of a unit that a rank holds as weights, sums as gradients, and steps.

    `gathered` are those of the whole unit, with what makes shares equal: FSDP2 splits each
    parameter by rows, in equal parts; the flat rest is split in equal parts again.
    """

    gathered: int
    weights: int
    gradients: int
    optimizer: int


def pieces(partition: Partition, unit: Unit) -> Pieces:
    """A rank's pieces of a unit."""
    w = partition.weights
    rows = sum(-(-rows // w) * (elements // rows) for rows, elements in unit.parameters)
    gradients = -(-rows // (partition.gradients // w))
    stepped = -(-gradients // (partition.optimizer // partition.gradients))
    return Pieces(rows * w, rows, gradients, stepped)


def held_bytes(partition: Partition, units: Sequence[Unit], element_bytes: int) -> dict[str, int]:
    """What a rank holds, by state; the second copy is there from the forward to the backward pass.

    Gathered weights, activations and buffers come on top.
    """
    held = dict.fromkeys(("weights", "second copy", "gradients", "optimizer states"), 0)
    for unit in units:
        own = pieces(partition, unit)
        held["weights"] += unit.count * own.weights * element_bytes
        if partition.secondary and unit.gathered_again:
            copy = own.gathered // partition.secondary
            held["second copy"] += unit.count * copy * element_bytes
        held["gradients"] += unit.count * own.gradients * ACCUMULATOR_BYTES
        held["optimizer states"] += unit.count * own.optimizer * OPTIMIZER_BYTES
    return held


@dataclass(frozen=True)
class Collective:
    """One collective of a rank: `ranks` of them take part, `stride` apart.

    `size_bytes` is by nccl-tests' definition. `quantised` are the elements that the rank turns
    into integers, or back.
    """

    operation: str
    ranks: int
    stride: int
    size_bytes: int
    quantised: int = 0

    @property
    def members(self) -> range:
        """The ranks of the first such group."""
        return range(0, self.ranks * self.stride, self.stride)


@dataclass(frozen=True)
class UnitTraffic:
    """Collectives of one unit: `forward`, `backward` (its weights) and `reduce` (its gradients) in
    every micro batch, `synchronise` and `update` once an iteration, around the optimizer."""

    forward: tuple[Collective, ...]
    backward: tuple[Collective, ...]
    reduce: tuple[Collective, ...]
    synchronise: tuple[Collective, ...]
    update: tuple[Collective, ...]


def unit_traffic(
    partition: Partition, unit: Unit, element_bytes: int, gradient_bytes: int
) -> UnitTraffic:
    """What a rank calls for one unit; groups of one rank are left out."""
    own = pieces(partition, unit)
    w, g, o = partition.weights, partition.gradients, partition.optimizer
    again = partition.secondary or w

    def gather(ranks: int, stride: int, elements: int) -> Collective:
        """Weights; `elements` of all ranks."""
        if not partition.int8_weights:
            return Collective("all_gather", ranks, stride, elements * element_bytes)
        size = ranks * quantised_bytes(elements // ranks, 8)
        return Collective("all_gather", ranks, stride, size, elements)

    def reduce(ranks: int, stride: int, part: int) -> Iterator[Collective]:
        """Gradients, of which each rank gets a `part`."""
        if not partition.int4_gradients:
            yield Collective("reduce_scatter", ranks, stride, ranks * part * gradient_bytes)
            return
        for along, apart, rows in hops(partition, ranks, stride):
            size = along * quantised_bytes(rows * part, 4)
            yield Collective("all_to_all", along, apart, size, 2 * along * rows * part)

    def used(calls: Iterator[Collective]) -> tuple[Collective, ...]:
        return tuple(call for call in calls if call.ranks > 1)

    rest = partition.ranks // o
    shares = Collective("all_reduce", rest, o, own.optimizer * gradient_bytes)
    return UnitTraffic(
        forward=used(iter([gather(w, 1, own.gathered)])),
        backward=used(iter([gather(again, 1, own.gathered)] * unit.gathered_again)),
        reduce=used(iter([*reduce(w, 1, own.weights), *reduce(g // w, w, own.gradients)])),
        synchronise=used(iter([*reduce(o // g, g, own.optimizer), shares])),
        update=used(
            Collective("all_gather", ranks, stride, ranks * part * element_bytes)
            for ranks, stride, part in ((o // g, g, own.optimizer), (g // w, w, own.gradients))
        ),
    )


def hops(partition: Partition, ranks: int, stride: int) -> list[tuple[int, int, int]]:
    """The all-to-alls that sum over a group: inside nodes, then between them (qgZ).

    Each as how many ranks exchange, how far apart they are, and for how many ranks further on
    each part that they exchange is.
    """
    inside = math.gcd(ranks, max(1, partition.node // stride))
    return [(inside, stride, ranks // inside), (ranks // inside, stride * inside, 1)]


def quantised_bytes(elements: int, bits: int) -> int:
    """Of so many elements as integers of so many bits, with a scale for each block; the last block
    is a whole one."""
    return -(-elements // BLOCK) * (BLOCK * bits // 8 + SCALE_BYTES)


@dataclass(frozen=True)
class Calls:
    """Like collectives of one rank in one iteration, in a phase of `repro.catalog.phases`."""

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
    """All that a rank calls in one iteration, barriers left out.

    The last one is the norm of all gradients, a number that the ranks sum over whom the
    optimizer's states are spread.
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
