"""Models that experiments can train: the papers', and open ones that name a testbed shape."""

from math import gcd

from repro.catalog.models.open_models import DecoderShape, OpenModel, read_open_models
from repro.catalog.models.papers import Model, Shape, read_models
from repro.catalog.reading import choose

Trainable = Model | OpenModel
AnyShape = Shape | DecoderShape


def trainable_models() -> dict[str, Trainable]:
    """All of them by name."""
    found: dict[str, Trainable] = dict(read_models())
    return found | {name: one for name, one in read_open_models().items() if one.testbed}


def trainable(name: str) -> Trainable:
    """One by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("model", name, trainable_models())


def expert_ranks(entry: Trainable, gpus: int) -> int:
    """Over how many of so many data-parallel ranks the experts of a model are spread."""
    return gcd(entry.expert_parallel, gpus) if isinstance(entry, OpenModel) else 1
