"""Models that experiments can train: the papers', and open-weight ones with a testbed shape."""

from math import gcd

from repro.catalog.models.open_models import DecoderShape, OpenModel, read_open_models
from repro.catalog.models.papers import Model, Shape, read_models
from repro.catalog.reading import choose

Trainable = Model | OpenModel
AnyShape = Shape | DecoderShape


def trainable_models() -> dict[str, Trainable]:
    """Read all trainable models by name."""
    models: dict[str, Trainable] = dict(read_models())
    return models | {name: model for name, model in read_open_models().items() if model.testbed}


def trainable(name: str) -> Trainable:
    """Return a model by name; an unknown name is a `ReproError` that lists the choices."""
    return choose("model", name, trainable_models())


def expert_ranks(entry: Trainable, gpus: int) -> int:
    """Return how many of `gpus` data-parallel ranks a model's experts are sharded across."""
    return gcd(entry.expert_parallel, gpus) if isinstance(entry, OpenModel) else 1
