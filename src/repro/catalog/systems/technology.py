"""Steps of silicon, memory and networks (`params/technology.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_yaml
from repro.paths import PARAMS


class Node(Entry):
    """One step of logic, relative to the one before: transistors per area, and energy of an
    operation at the same speed."""

    nm: PositiveFloat
    label: str
    density: PositiveFloat
    energy: PositiveFloat
    source: str


class Die(Entry):
    """What a GPU is made of: its node, the area of its dies and its power."""

    nm: PositiveFloat
    area_mm2: PositiveFloat
    power_w: PositiveFloat
    source: str


class Reference(Die):
    """The GPU of `params/gpus.yaml` that nodes are applied to."""

    gpu: str


class MemoryKind(Entry):
    """One kind of memory: rate in 1e9 B/s and size in 1e9 B of a stack or chip, and how many a
    package of today has."""

    name: str
    gbytes_per_s: PositiveFloat
    gb: PositiveFloat
    places: PositiveInt
    source: str


class Moving(Entry):
    """Energy of a bit that moves."""

    picojoules_per_bit: PositiveFloat
    source: str


class Technology(Entry):
    """All of them, nodes from the oldest on; `known` are dies of GPUs in `params/gpus.yaml`,
    `moving` the energy of what carries bits to `memory`, over a `link` and into a `network`,
    `host_memories` those of a CPU's socket, or behind its ports."""

    nodes: tuple[Node, ...]
    reference: Reference
    known: dict[str, Die]
    memories: tuple[MemoryKind, ...]
    host_memories: tuple[MemoryKind, ...]
    networks_gbps: tuple[PositiveFloat, ...]
    moving: dict[Literal["memory", "link", "network"], Moving]

    def density(self, nm: float) -> float:
        """Transistors per area in units of the reference's."""
        return self._steps("density", nm)

    def energy(self, nm: float) -> float:
        """Energy of an operation in units of the reference's."""
        return self._steps("energy", nm)

    def _steps(self, name: str, nm: float) -> float:
        value, found = 1.0, dict[float, float]()
        for node in self.nodes:
            value *= getattr(node, name)
            found[node.nm] = value
        return found[nm] / found[self.reference.nm]


def read_technology() -> Technology:
    """The file."""
    value: Technology = read_yaml(PARAMS / "technology.yaml", Technology)
    return value
