"""What is measured of a GPU by itself (`params/gpu.yaml`)."""

from pydantic import PositiveInt

from repro.catalog.reading import Entry, read_yaml
from repro.catalog.systems.nodes import Attention
from repro.paths import PARAMS


class GpuOperators(Entry):
    """Operators: the GPU whose published sizes are taken, `every` so many of them, `repeats` of
    each, and bytes that additions move."""

    published_of: str
    every: PositiveInt
    repeats: PositiveInt
    added_bytes: tuple[PositiveInt, ...]


class GpuDecoder(Entry):
    """A decoder: a model of `params/open_models.yaml`; batches and cached tokens when a token is
    written, batches and tokens of prompts, and repeats of each."""

    model: str
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    prompt_batches: tuple[PositiveInt, ...]
    prompt_tokens: tuple[PositiveInt, ...]
    repeats: PositiveInt


class GpuAttention(Entry):
    """Iterations of a model of the papers by attention and sequence length; micro batches have so
    many `tokens`."""

    model: str
    kinds: tuple[Attention, ...]
    sequences: tuple[PositiveInt, ...]
    tokens: PositiveInt
    warmup: PositiveInt
    iterations: PositiveInt


class GpuStudy(Entry):
    """All of it."""

    operators: GpuOperators
    decoder: GpuDecoder
    attention: GpuAttention


def read_gpu_study() -> GpuStudy:
    """The file."""
    value: GpuStudy = read_yaml(PARAMS / "gpu.yaml", GpuStudy)
    return value
