"""Models whose memory is published, as they were trained (`params/memory.yaml`)."""

from typing import Literal

from repro.catalog.models.papers import Shape
from repro.catalog.reading import Entry, read_yaml
from repro.paths import PARAMS


class Trained(Entry):
    """A GPT, and its plan (`repro.catalog.parallel.layouts.read_plan`)."""

    shape: Shape
    plan: str


class Mode(Entry):
    """What saves activations."""

    recompute: Literal["none", "selective", "full"]
    sequence_parallel: bool = False


class PublishedMemory(Entry):
    """Models and modes by the names of the published files."""

    source: str
    models: dict[str, Trained]
    modes: dict[str, Mode]


def read_published_memory() -> PublishedMemory:
    """The file."""
    value: PublishedMemory = read_yaml(PARAMS / "memory.yaml", PublishedMemory)
    return value
