"""Communication of a rank in a GPT training step: operation, group, phase, size and number.

The formulas are exact for Megatron-Core, whose log they are tested against call by call. Formulas
of ZeRO-2, ZeRO-3 and context parallelism follow their sources. Sizes use nccl-tests' definition.
One activation is A = s b h e bytes: s positions (of this rank's context), b sequences, hidden size
h and e bytes per element.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from repro.catalog.models.papers import Shape
from repro.catalog.parallel.layouts import Layout

# Megatron-Core computes the loss and the gradients' norm in fp32.
_FP32 = 4
# Alignment in Megatron-Core's buffers, in elements: of a parameter's start, and of a bucket's end
# together with the number of ranks (least common multiple; param_and_grad_buffer.py).
_PARAMETER_ALIGNMENT, _BUCKET_ALIGNMENT = 64, 128


@dataclass(frozen=True)
class Calls:
    """Identical calls of one rank in one iteration.

    Attributes
    ----------
    role
        Purpose of the process group: one of `repro.observe.transfers.ROLES`.
    phase
        One of `repro.catalog.phases.PHASES`.
    operation
        A collective, `send` or `recv`.
    ranks
        Size of the group; 2 for a message.
    size_bytes
        Size of one call, by nccl-tests' definition.
    calls
        Number of calls.
    """

    role: str
    phase: str
    operation: str
    ranks: int
    size_bytes: int
    calls: int


@dataclass(frozen=True)
class _Stage:
    """Pipeline stage of a rank, and the sizes of its calls; `activation` is A in bytes."""

    shape: Shape
    layout: Layout
    number: int
    element_bytes: int
    gradient_bytes: int

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def last(self) -> bool:
        return self.number == self.layout.pipeline_parallel - 1

    @property
    def layers(self) -> int:
        return self.shape.layers // self.layout.pipeline_parallel

    @property
    def tokens(self) -> int:
        positions = self.shape.sequence_length // self.layout.context_parallel
        return positions * self.layout.micro_batch_size

    @property
    def activation(self) -> int:
        return self.tokens * self.shape.hidden_size * self.element_bytes

    @property
    def sync_phase(self) -> str:
        """Phase of syncs after the gradients': a separate one in pipelines only."""
        return "embedding sync" if self.layout.pipeline_parallel > 1 else "gradient sync"


def step_communication(
    shape: Shape, layout: Layout, stage: int, element_bytes: int = 2, gradient_bytes: int = 2
) -> tuple[Calls, ...]:
    """Return all calls of each rank of a pipeline stage in one iteration.

    Barriers and groups of one rank are left out. Embedding and output share their weights, nothing
    is recomputed, and nothing overlaps.

    Parameters
    ----------
    stage
        Pipeline stage of the rank, from 0.
    element_bytes, gradient_bytes
        Bytes per element of activations and parameters, and of gradients when they are summed.

    Raises
    ------
    ReproError
        The layout does not divide the shape.
    """
    layout.check(shape)
    split = _Stage(shape, layout, stage, element_bytes, gradient_bytes)
    found = (
        *_tensor(split),
        *_context(split),
        *_messages(split),
        *_data(split),
        *_optimizer(split),
    )
    return tuple(calls for calls in found if calls.calls and calls.ranks > 1)


def _tensor(stage: _Stage) -> Iterator[Calls]:
    """Yield the calls of tensor parallelism, and of sequence parallelism.

    Each of a layer's two blocks has an all-reduce in either pass (Shoeybi et al., 2019). Sequence
    parallelism replaces it with a reduce-scatter and an all-gather, and the backward pass gathers
    the inputs a second time (Korthikanti et al., 2023). The word embeddings are all-reduced even
    then, because position embeddings are added to the sum, and its gradients are gathered. The
    logits' inputs are those of a column-parallel layer. Each token's loss takes a maximum and two
    sums.
    """
    t, m, layers = stage.layout.tensor_parallel, stage.layout.micro_batches, stage.layers
    forward, backward = "forward compute", "backward compute"

    def each(phase: str, operation: str, calls: int, size_bytes: int = stage.activation) -> Calls:
        return Calls("tensor", phase, operation, t, size_bytes, calls * m)

    yield each(forward, "all_reduce", stage.first)
    yield each(forward, "all_reduce", 3 * stage.last, stage.tokens * _FP32)
    if not stage.layout.sequence_parallel:
        yield each(forward, "all_reduce", 2 * layers)
        yield each(backward, "all_reduce", 2 * layers + stage.last)
        return
    yield each(forward, "all_gather", 2 * layers + stage.last)
    yield each(forward, "reduce_scatter", 2 * layers)
    yield each(backward, "all_gather", 4 * layers + stage.last + stage.first)
    yield each(backward, "reduce_scatter", 2 * layers + stage.last)
    # Replicated parameters whose gradients cover this rank's positions: norms, row-parallel biases.
    h = stage.shape.hidden_size
    replicated = 6 * h * layers + 2 * h * stage.last
    yield Calls("tensor", stage.sync_phase, "all_reduce", t, replicated * stage.gradient_bytes, 1)


def _context(stage: _Stage) -> Iterator[Calls]:
    """Yield the calls of ring attention (Liu et al., 2023).

    Transformer Engine sends them with `cp_comm_type` p2p. In either pass, keys and values go around
    the ring c - 1 times. In the backward pass their gradients follow one step later.
    """
    c, m = stage.layout.context_parallel, stage.layout.micro_batches
    block = 2 * stage.activation // stage.layout.tensor_parallel
    passes = stage.layers * m
    for operation in ("send", "recv"):
        yield Calls("context", "forward compute", operation, c, block, (c - 1) * passes)
        yield Calls("context", "backward compute", operation, c, block, 2 * passes * (c > 1))
        both = max(0, c - 2) * passes
        yield Calls("context", "backward compute", operation, c, 2 * block, both)


def _messages(stage: _Stage) -> Iterator[Calls]:
    """Yield the pipeline messages: each stage sends A to the next and receives as much back."""
    if stage.layout.pipeline_parallel == 1:
        return
    split = stage.layout.tensor_parallel if stage.layout.sequence_parallel else 1
    count = _plain_1f1b(stage) if stage.layout.virtual_stages == 1 else _interleaved_1f1b(stage)
    for (phase, operation), calls in count.items():
        yield Calls("pipeline", phase, operation, 2, stage.activation // split, calls)


def _plain_1f1b(stage: _Stage) -> dict[tuple[str, str], int]:
    """Count the messages of 1F1B (Narayanan et al., SC 2021).

    A stage starts with as many forward passes as there are stages after it. Megatron-Core's timer
    of a combined send and receive is counted as receiving.
    """
    m = stage.layout.micro_batches
    filling = min(stage.layout.pipeline_parallel - stage.number - 1, m)
    steady = m - filling
    together = 0 if stage.first else max(0, steady - 1)
    return {
        ("forward receive", "recv"): 0 if stage.first else m,
        ("forward receive", "send"): together,
        ("backward receive", "recv"): 0 if stage.last else m,
        ("backward receive", "send"): 0 if stage.last else steady,
        ("send", "send"): filling + (0 if stage.first else m - together),
    }


def _interleaved_1f1b(stage: _Stage) -> dict[tuple[str, str], int]:
    """Count the messages of interleaved 1F1B (Narayanan et al., SC 2021), without overlap.

    Up to the last forward pass, one call holds both directions, and its timer counts as receiving
    forward. The remaining backward passes count as receiving backward.
    """
    layout = stage.layout
    p, v, m = layout.pipeline_parallel, layout.virtual_stages, layout.micro_batches
    total = m * v
    filling = min(2 * (p - stage.number - 1) + (v - 1) * p, total)
    steady = total - filling

    def first_chunk_passes(passes: int) -> int:
        """Count the passes of the first chunk, which comes last, among these backward passes."""
        groups, rest = divmod(passes, p * v)
        return groups * p + max(0, rest - (v - 1) * p)

    sent = steady - (first_chunk_passes(steady) if stage.first else 0)
    if stage.last:
        # The first stage's gradients come back p - 1 passes later.
        passed = max(0, steady - p + 1)
        received = passed - first_chunk_passes(passed)
    else:
        received = steady + (steady > 0)
    forward_sends = total - (m if stage.last else 0)
    return {
        ("forward receive", "recv"): total - (m if stage.first else 0) + received,
        ("forward receive", "send"): forward_sends + sent,
        ("backward receive", "recv"): total - (m if stage.last else 0) - received,
        ("backward receive", "send"): total - (m if stage.first else 0) - sent,
    }


def _data(stage: _Stage) -> Iterator[Calls]:
    """Yield the calls that sync gradients and parameters between replicas.

    ZeRO follows Rajbhandari et al., SC 2020. ZeRO-1 is Megatron-Core's distributed optimizer.
    ZeRO-2 reduce-scatters every micro batch's gradients. ZeRO-3 does so layer by layer, and gathers
    a layer's parameters before each pass. In a pipeline, the stages with word embeddings sum the
    embeddings' gradients.
    """
    layout, shape = stage.layout, stage.shape
    ranks = layout.data_parallel * layout.context_parallel
    m, widths = layout.micro_batches, (stage.gradient_bytes, stage.element_bytes)

    def each(phase: str, operation: str, elements: int, width: int, calls: int = 1) -> Calls:
        return Calls("data", phase, operation, ranks, elements * width, calls)

    if layout.zero == 0:
        for chunk in _chunks(stage):
            yield each("gradient sync", "all_reduce", sum(map(sum, chunk)), widths[0])
    elif layout.zero < 3:
        often, phase = (1, "gradient sync") if layout.zero == 1 else (m, "backward compute")
        for chunk in _chunks(stage):
            for bucket in chunk:
                size = _padded(bucket, ranks)
                yield each(phase, "reduce_scatter", size, widths[0], often)
                yield each("parameter all-gather", "all_gather", size, widths[1])
    else:
        for unit in _zero3_units(stage):
            yield each("forward compute", "all_gather", unit, widths[1], m)
            yield each("backward compute", "all_gather", unit, widths[1], m)
            yield each("backward compute", "reduce_scatter", unit, widths[0], m)
    if layout.pipeline_parallel > 1 and (stage.first or stage.last):
        table = shape.vocabulary_size // layout.tensor_parallel * shape.hidden_size
        size_bytes = table * stage.gradient_bytes
        yield Calls("embedding", "embedding sync", "all_reduce", 2, size_bytes, 1)


def _optimizer(stage: _Stage) -> Iterator[Calls]:
    """Yield the sum of the gradients' norm, one number, over all ranks that hold parts of them."""
    layout = stage.layout
    # Without ZeRO, context-parallel ranks and replicas hold the same gradients.
    ranks = layout.ranks if layout.zero else layout.tensor_parallel * layout.pipeline_parallel
    yield Calls("optimizer", "optimizer", "all_reduce", ranks, _FP32, 1)


def _layer(stage: _Stage) -> list[int]:
    """List the elements of each of a layer's parameters on one rank."""
    h, f, t = stage.shape.hidden_size, stage.shape.ffn_hidden_size, stage.layout.tensor_parallel
    norms, biases = [h] * 4, [3 * h // t, h, f // t, h]
    return [*norms, *biases, 3 * h * h // t, h * h // t, h * f // t, h * f // t]


def _chunks(stage: _Stage) -> Iterator[list[list[int]]]:
    """Yield the parameter sizes of each model chunk, by bucket.

    Megatron-Core gives word embeddings that two stages share a bucket of their own, for the
    distributed optimizer.
    """
    shape, layout = stage.shape, stage.layout
    h, v = shape.hidden_size, layout.virtual_stages
    table = shape.vocabulary_size // layout.tensor_parallel * h
    shared = layout.pipeline_parallel > 1
    for chunk in range(v):
        sizes = _layer(stage) * (stage.layers // v)
        first, last = stage.first and chunk == 0, stage.last and chunk == v - 1
        sizes += [shape.sequence_length * h] * first + [h, h] * last
        if shared and (first or last):
            yield [sizes, [table]]
        else:
            yield [sizes + [table] * (first or last)]


def _padded(bucket: list[int], ranks: int) -> int:
    """Return the elements of a bucket after padding it to equal shards."""
    starts = sum(-(-size // _PARAMETER_ALIGNMENT) * _PARAMETER_ALIGNMENT for size in bucket)
    multiple = math.lcm(ranks, _BUCKET_ALIGNMENT)
    return -(-starts // multiple) * multiple


def _zero3_units(stage: _Stage) -> list[int]:
    """List the sizes that ZeRO-3 gathers at once: of each layer, and of the rest together."""
    everything = sum(sum(bucket) for chunk in _chunks(stage) for bucket in chunk)
    layer = sum(_layer(stage))
    rest = everything - stage.layers * layer
    return [layer] * stage.layers + ([rest] if rest else [])
