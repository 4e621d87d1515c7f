"""What is measured of a GPU by itself (`params/gpu.yaml`)."""

from collections.abc import Mapping
from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.models.dlrm import DlrmShape
from repro.catalog.reading import Entry, read_yaml
from repro.catalog.studies.operator_benchmarks import Sizes
from repro.catalog.studies.operators import TOUCHED_ONCE, Grids, TableSets
from repro.catalog.systems.nodes import Attention, Precision
from repro.paths import PARAMS

GpuWeights = Literal["bf16", "fp8"]


class GpuOperators(Entry):
    """Operators: the GPU whose published sizes are taken, `every` so many of them, `repeats` of
    each, and bytes that additions move."""

    published_of: str
    every: PositiveInt
    repeats: PositiveInt
    added_bytes: tuple[PositiveInt, ...]


class GpuSustained(Entry):
    """Products (m, n, k) one after another for so many seconds, behind a rest, in some
    precisions."""

    products: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...]
    variants: tuple[GpuWeights, ...]
    seconds: PositiveFloat
    rest_s: PositiveFloat


class GpuDecoder(Entry):
    """Decoders: models of `params/open_models.yaml`, each with weights in some precisions; batches
    and cached tokens when a token is written, batches and tokens of prompts, repeats of each."""

    models: tuple[str, ...]
    weights: tuple[GpuWeights, ...]
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


class GpuIterations(Grids):
    """Iterations, and operators that they are timed again from.

    Attributes
    ----------
    models, precision, micro_batches
        Of the papers, at full size; the first micro batch tells the host's time, the others are
        judged.
    dlrm, tables, table_sets, samples
        Recommendation models in fp32; samples are their micro batches.
    warmup, iterations
        Dropped and recorded.
    working_bytes, states_bytes
        That operands of most operators take turns in, and of those that an iteration touches once.
    sides
        m, n and k of products, by precision.
    batches, batched_sides
        Of batched products, by precision.
    repeats
        Of each operator.
    """

    models: tuple[str, ...]
    precision: Precision
    micro_batches: tuple[PositiveInt, ...]
    dlrm: DlrmShape
    tables: TableSets
    table_sets: PositiveInt
    samples: tuple[PositiveInt, ...]
    warmup: PositiveInt
    iterations: PositiveInt
    working_bytes: PositiveFloat
    states_bytes: PositiveFloat
    sides: Mapping[str, tuple[PositiveInt, ...]]
    batches: Mapping[str, tuple[PositiveInt, ...]]
    batched_sides: Mapping[str, tuple[PositiveInt, ...]]
    repeats: PositiveInt

    def grid(self, operator: str, precision: str) -> tuple[Sizes, ...]:
        """The sizes that an operator of `operator_benchmarks` is measured at, an axis for each."""
        if operator.startswith("product"):
            return 3 * (self.sides[precision],)
        if operator.startswith("batched product"):
            return (self.batches[precision], *3 * (self.batched_sides[precision],))
        return self.by_size(operator)

    def turns_bytes(self, operator: str) -> float:
        """That its operands take turns in; matrices of weights are read once."""
        once = operator in TOUCHED_ONCE or operator.startswith("product")
        return self.states_bytes if once else self.working_bytes


class GpuStudy(Entry):
    """All of it."""

    operators: GpuOperators
    sustained: GpuSustained
    decoder: GpuDecoder
    attention: GpuAttention
    iterations: GpuIterations


def read_gpu_study() -> GpuStudy:
    """The file."""
    value: GpuStudy = read_yaml(PARAMS / "gpu.yaml", GpuStudy)
    return value
