"""Cluster topology as a tree: levels of links between GPUs, each with its rate."""

from collections.abc import Iterable

from pydantic import PositiveFloat, PositiveInt, field_validator

from repro.catalog.reading import Entry


class Level(Entry):
    """Level of the tree.

    `members` vertices of the level below are connected to one switch of this level, each by a
    full-duplex link of `link_gbps` (Gbit/s in each direction).
    """

    name: str
    members: PositiveInt
    link_gbps: PositiveFloat


class Topology(Entry):
    """Levels from the GPU upwards: `(node, fabric)` is GPUs on a node's bus, nodes on a switch."""

    levels: tuple[Level, ...]

    @field_validator("levels")
    @classmethod
    def _two_or_more(cls, levels: tuple[Level, ...]) -> tuple[Level, ...]:
        if len(levels) < 2:
            raise ValueError(f"{len(levels)} levels; fix: give at least the levels node and fabric")
        return levels

    @property
    def gpus_per_node(self) -> int:
        """GPUs below one vertex of the top level."""
        count = 1
        for level in self.levels[:-1]:
            count *= level.members
        return count

    @property
    def gpus(self) -> int:
        """Number of all GPUs, the leaves of the tree."""
        return self.gpus_per_node * self.nodes

    @property
    def nodes(self) -> int:
        """Nodes connected to the fabric."""
        return self.levels[-1].members

    def truncated_to(self, gpus: int) -> "Topology":
        """Return the smallest tree of whole nodes that has this many GPUs."""
        below, levels = 1, []
        for level in self.levels:
            top = level is self.levels[-1]
            members = min(level.members, -(-gpus // below)) if top else level.members
            levels.append(level.model_copy(update={"members": members}))
            below *= level.members
        return Topology(levels=tuple(levels))

    def lowest_common_level(self, ranks: Iterable[int]) -> str:
        """Return the name of the lowest level that connects all of these ranks."""
        numbers, below = list(ranks), 1
        for level in self.levels:
            below *= level.members
            if len({number // below for number in numbers}) == 1:
                return level.name
        return self.levels[-1].name

    def node_of(self, rank: int) -> int:
        """Return the node of a rank: ranks fill one node after another."""
        return rank // self.gpus_per_node
