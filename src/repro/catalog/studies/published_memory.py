"""Models whose memory is published, with their training plans (`params/memory.yaml`)."""

from typing import Literal

from repro.catalog.models.papers import Shape
from repro.catalog.reading import Entry, read_params


class PublishedModel(Entry):
    """GPT and its plan (`repro.catalog.parallel.layouts.read_plan`)."""

    shape: Shape
    plan: str


class Mode(Entry):
    """Techniques that save activation memory."""

    recompute: Literal["none", "selective", "full"]
    sequence_parallel: bool = False


class PublishedMemory(Entry):
    """Models and modes by the names of the published files."""

    source: str
    models: dict[str, PublishedModel]
    modes: dict[str, Mode]


def read_published_memory() -> PublishedMemory:
    """Read `params/memory.yaml`."""
    value: PublishedMemory = read_params("memory.yaml", PublishedMemory)
    return value
