"""Generations of silicon and memory, and the energy of moved bits (`params/technology.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_params


class ProcessNode(Entry):
    """Process node: density and energy per operation (at equal speed) over the previous node's."""

    nm: PositiveFloat
    label: str
    density: PositiveFloat
    energy: PositiveFloat
    source: str


class Die(Entry):
    """Silicon of a GPU: its process node, the area of its dies and its power."""

    nm: PositiveFloat
    area_mm2: PositiveFloat
    power_w: PositiveFloat
    source: str


class ReferenceDie(Die):
    """GPU of `params/gpus.yaml` that process nodes are applied to."""

    gpu: str


class MemoryKind(Entry):
    """Kind of memory: rate (1e9 B/s) and size (1e9 B) of a stack or chip, `places` per package."""

    name: str
    gbytes_per_s: PositiveFloat
    gb: PositiveFloat
    places: PositiveInt
    source: str


class TransferEnergy(Entry):
    """Energy of a bit that moves."""

    picojoules_per_bit: PositiveFloat
    source: str


class Technology(Entry):
    """All generations; process nodes begin with the oldest.

    `known` are dies of GPUs in `params/gpus.yaml`. `moving` is the energy per bit of transfers to
    `memory`, over a `link` and into a `network`. `host_memories` are those of a CPU's socket or its
    ports.
    """

    nodes: tuple[ProcessNode, ...]
    reference: ReferenceDie
    known: dict[str, Die]
    memories: tuple[MemoryKind, ...]
    host_memories: tuple[MemoryKind, ...]
    moving: dict[Literal["memory", "link", "network"], TransferEnergy]

    def density(self, nm: float) -> float:
        """Return transistors per area, relative to the reference GPU's node."""
        return self._relative("density", nm)

    def energy(self, nm: float) -> float:
        """Return the energy of an operation, relative to the reference GPU's node."""
        return self._relative("energy", nm)

    def _relative(self, name: str, nm: float) -> float:
        value, by_node = 1.0, dict[float, float]()
        for node in self.nodes:
            value *= getattr(node, name)
            by_node[node.nm] = value
        return by_node[nm] / by_node[self.reference.nm]


def read_technology() -> Technology:
    """Read `params/technology.yaml`."""
    value: Technology = read_params("technology.yaml", Technology)
    return value
