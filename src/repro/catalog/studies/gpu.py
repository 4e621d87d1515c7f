"""Study of one GPU by itself (`params/gpu.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.models.dlrm import DlrmShape
from repro.catalog.reading import Entry, read_params
from repro.catalog.studies.operator_benchmarks import EMBEDDING_BAG, Sizes
from repro.catalog.studies.operators import Grids, TableSets
from repro.catalog.systems.nodes import Attention, Precision

GpuWeights = Literal["bf16", "fp8"]
# Operators whose operands an iteration uses once.
_USED_ONCE = ("embedding", "_fused_adamw_/1", "linalg_vector_norm/1", "zero_/1")


class GpuOperators(Entry):
    """Operators: every n-th (`every`) size that was published of the GPU `published_of`.

    Each is repeated `repeats` times. Additions move `added_bytes`.
    """

    published_of: str
    every: PositiveInt
    repeats: PositiveInt
    added_bytes: tuple[PositiveInt, ...]


class GpuSustained(Entry):
    """Matmuls (m, n, k) without pauses for `seconds`, after `rest_s` of idle time, by precision."""

    products: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...]
    variants: tuple[GpuWeights, ...]
    seconds: PositiveFloat
    rest_s: PositiveFloat


class GpuDecoder(Entry):
    """Decoders of `params/open_models.yaml`, each with weights in some precisions.

    Writing a token has `batches` and cached tokens (`contexts`); reading prompts has
    `prompt_batches` and `prompt_tokens`. Each is repeated `repeats` times.
    """

    models: tuple[str, ...]
    weights: tuple[GpuWeights, ...]
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    prompt_batches: tuple[PositiveInt, ...]
    prompt_tokens: tuple[PositiveInt, ...]
    repeats: PositiveInt


class GpuAttention(Entry):
    """Iterations of a model by attention and sequence length, with `tokens` per micro batch."""

    model: str
    kinds: tuple[Attention, ...]
    sequences: tuple[PositiveInt, ...]
    tokens: PositiveInt
    warmup: PositiveInt
    iterations: PositiveInt


class GpuIterations(Grids):
    """Iterations, and the operators from which they are replayed.

    Attributes
    ----------
    models, precision, micro_batches
        Models of the papers, at full size. The first micro batch determines the host's time; the
        others are judged.
    dlrm, tables, table_sets, samples
        Recommendation models in fp32; `samples` are their micro batches.
    warmup, iterations
        Iterations dropped and recorded.
    working_bytes, states_bytes
        Bytes through which an operator's operands rotate; `states_bytes` if an iteration uses them
        once.
    bags, poolings
        Sizes of sums of rows: their number, and the average rows of each.
    repeats
        Repeats of each operator.
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
    bags: tuple[PositiveInt, ...]
    poolings: tuple[PositiveFloat, ...]
    repeats: PositiveInt

    def grid(self, operator: str, precision: str) -> tuple[Sizes, ...]:
        """Return the sizes at which an operator of `operator_benchmarks` is measured, by axis."""
        if operator == EMBEDDING_BAG:
            return self.bags, self.poolings, self.embedding_widths, self.table_rows
        return super().grid(operator, precision)

    def rotation_bytes(self, operator: str) -> float:
        """Return the bytes through which operands rotate; weight matrices are read once."""
        once = operator in _USED_ONCE or operator.startswith("product")
        return self.states_bytes if once else self.working_bytes


class GpuStudy(Entry):
    """Parameters of the study."""

    operators: GpuOperators
    sustained: GpuSustained
    decoder: GpuDecoder
    attention: GpuAttention
    iterations: GpuIterations


def read_gpu_study() -> GpuStudy:
    """Read `params/gpu.yaml`."""
    value: GpuStudy = read_params("gpu.yaml", GpuStudy)
    return value
