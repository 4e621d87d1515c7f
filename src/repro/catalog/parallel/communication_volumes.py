"""What a rank communicates in a training step of a GPT: operation, group, phase, size and number.

The forms are exact for Megatron-Core, whose log they are tested against call by call; those of
ZeRO-2, ZeRO-3 and context parallelism follow their sources. Sizes are by nccl-tests' definition.
With s positions (of this rank's context), b sequences, h hidden size, e bytes an element, one
activation is A = s b h e.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from repro.catalog.models.papers import Shape
from repro.catalog.parallel.layouts import Layout

# Megatron-Core computes the loss, and the gradients' norm, in fp32.
_FP32 = 4
# Megatron-Core's buffers: a parameter begins at a multiple of so many elements, and a bucket ends
# at one of the least common multiple of the ranks and so many (param_and_grad_buffer.py).
_PARAMETER_ALIGNMENT, _BUCKET_ALIGNMENT = 64, 128


@dataclass(frozen=True)
class Calls:
    """Like calls of one rank in one iteration.

    Attributes
    ----------
    role
        What the process group is for: `repro.observe.transfers.ROLES`.
    phase
        One of `repro.catalog.phases.PHASES`.
    operation
        A collective, `send` or `recv`.
    ranks
        Of the group; 2 for a message.
    size_bytes
        Of one call, by nccl-tests' definition.
    calls
        How many.
    """

    role: str
    phase: str
    operation: str
    ranks: int
    size_bytes: int
    calls: int


@dataclass(frozen=True)
class _Stage:
    """A rank's stage, and what its calls are made of; `activation` is A in bytes."""

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
        """What is synced behind the gradients has a phase of its own in pipelines only."""
        return "embedding sync" if self.layout.pipeline_parallel > 1 else "gradient sync"


def step_communication(
    shape: Shape, layout: Layout, stage: int, element_bytes: int = 2, gradient_bytes: int = 2
) -> tuple[Calls, ...]:
    """All that each rank of a pipeline stage calls in one iteration.

    Groups of one rank are left out, and barriers. Weights of embedding and output are shared,
    nothing is recomputed, and nothing overlaps.

    Parameters
    ----------
    stage
        The rank's, from 0.
    element_bytes, gradient_bytes
        Of activations and parameters, and of gradients when they are summed.

    Raises
    ------
    ReproError
        The shape cannot be split so.
    """
    layout.check(shape)
    one = _Stage(shape, layout, stage, element_bytes, gradient_bytes)
    found = (*_tensor(one), *_context(one), *_messages(one), *_data(one), *_optimizer(one))
    return tuple(calls for calls in found if calls.calls and calls.ranks > 1)


def _tensor(one: _Stage) -> Iterator[Calls]:
    """Tensor parallelism (Shoeybi et al., 2019), and sequence parallelism (Korthikanti et al.,
    2023) with its second all-gather of the inputs in the backward pass.

    Each of a layer's two blocks has an all-reduce in either pass; split by positions, it is a
    reduce-scatter and an all-gather, and the backward pass gathers twice. The word embeddings are
    all-reduced also then, because position embeddings are added to the sum, and its gradients
    are gathered. The logits' inputs are a column-parallel layer's. Each token's loss takes a
    maximum and two sums.
    """
    t, m, layers = one.layout.tensor_parallel, one.layout.micro_batches, one.layers
    forward, backward = "forward compute", "backward compute"

    def each(phase: str, operation: str, calls: int, size_bytes: int = one.activation) -> Calls:
        return Calls("tensor", phase, operation, t, size_bytes, calls * m)

    yield each(forward, "all_reduce", one.first)
    yield each(forward, "all_reduce", 3 * one.last, one.tokens * _FP32)
    if not one.layout.sequence_parallel:
        yield each(forward, "all_reduce", 2 * layers)
        yield each(backward, "all_reduce", 2 * layers + one.last)
        return
    yield each(forward, "all_gather", 2 * layers + one.last)
    yield each(forward, "reduce_scatter", 2 * layers)
    yield each(backward, "all_gather", 4 * layers + one.last + one.first)
    yield each(backward, "reduce_scatter", 2 * layers + one.last)
    # What every rank holds and has seen its positions of: norms and row-parallel layers' biases.
    h = one.shape.hidden_size
    replicated = 6 * h * layers + 2 * h * one.last
    yield Calls("tensor", one.sync_phase, "all_reduce", t, replicated * one.gradient_bytes, 1)


def _context(one: _Stage) -> Iterator[Calls]:
    """Ring attention (Liu et al., 2023) as Transformer Engine sends it (`cp_comm_type` p2p).

    In the forward pass keys and values go around c - 1 times; in the backward pass they do again,
    and their gradients one step behind them.
    """
    c, m = one.layout.context_parallel, one.layout.micro_batches
    block = 2 * one.activation // one.layout.tensor_parallel
    passes = one.layers * m
    for operation in ("send", "recv"):
        yield Calls("context", "forward compute", operation, c, block, (c - 1) * passes)
        yield Calls("context", "backward compute", operation, c, block, 2 * passes * (c > 1))
        both = max(0, c - 2) * passes
        yield Calls("context", "backward compute", operation, c, 2 * block, both)


def _messages(one: _Stage) -> Iterator[Calls]:
    """Pipelines: every stage hands A on, and gets as much back; by Megatron-Core's timers."""
    if one.layout.pipeline_parallel == 1:
        return
    split = one.layout.tensor_parallel if one.layout.sequence_parallel else 1
    count = _plain(one) if one.layout.virtual_stages == 1 else _interleaved(one)
    for (phase, operation), calls in count.items():
        yield Calls("pipeline", phase, operation, 2, one.activation // split, calls)


def _plain(one: _Stage) -> dict[tuple[str, str], int]:
    """1F1B (Narayanan et al., SC 2021): a stage fills with as many forward passes as follow it.

    A timer of a send and a receive is one of receiving.
    """
    m = one.layout.micro_batches
    filling = min(one.layout.pipeline_parallel - one.number - 1, m)
    steady = m - filling
    together = 0 if one.first else max(0, steady - 1)
    return {
        ("forward receive", "recv"): 0 if one.first else m,
        ("forward receive", "send"): together,
        ("backward receive", "recv"): 0 if one.last else m,
        ("backward receive", "send"): 0 if one.last else steady,
        ("send", "send"): filling + (0 if one.first else m - together),
    }


def _interleaved(one: _Stage) -> dict[tuple[str, str], int]:
    """Interleaved 1F1B (Narayanan et al., SC 2021), without overlap.

    Until the last forward pass a call holds both directions, whose timer counts as receiving
    forward; what drains is received backward.
    """
    p, v, m = one.layout.pipeline_parallel, one.layout.virtual_stages, one.layout.micro_batches
    total = m * v
    filling = min(2 * (p - one.number - 1) + (v - 1) * p, total)
    steady = total - filling

    def of_first_chunk(passes: int) -> int:
        """Of so many backward passes, those of the first chunk, which comes last."""
        groups, rest = divmod(passes, p * v)
        return groups * p + max(0, rest - (v - 1) * p)

    sent = steady - (of_first_chunk(steady) if one.first else 0)
    if one.last:
        # What comes back from the first stage does so p - 1 passes later.
        passed = max(0, steady - p + 1)
        received = passed - of_first_chunk(passed)
    else:
        received = steady + (steady > 0)
    forward_sends = total - (m if one.last else 0)
    return {
        ("forward receive", "recv"): total - (m if one.first else 0) + received,
        ("forward receive", "send"): forward_sends + sent,
        ("backward receive", "recv"): total - (m if one.last else 0) - received,
        ("backward receive", "send"): total - (m if one.first else 0) - sent,
    }


def _data(one: _Stage) -> Iterator[Calls]:
    """Gradients and parameters between replicas; ZeRO by Rajbhandari et al., SC 2020.

    ZeRO-1 is Megatron-Core's distributed optimizer. ZeRO-2 reduce-scatters every micro batch's
    gradients. ZeRO-3 does so layer by layer, and gathers a layer's parameters in front of each
    pass. In a pipeline, the stages with the word embeddings sum their gradients.
    """
    layout, shape = one.layout, one.shape
    ranks = layout.data_parallel * layout.context_parallel
    m, widths = layout.micro_batches, (one.gradient_bytes, one.element_bytes)

    def each(phase: str, operation: str, elements: int, width: int, calls: int = 1) -> Calls:
        return Calls("data", phase, operation, ranks, elements * width, calls)

    if layout.zero == 0:
        for chunk in _chunks(one):
            yield each("gradient sync", "all_reduce", sum(sum(b) for b in chunk), widths[0])
    elif layout.zero < 3:
        often, phase = (1, "gradient sync") if layout.zero == 1 else (m, "backward compute")
        for chunk in _chunks(one):
            for bucket in chunk:
                size = _padded(bucket, ranks)
                yield each(phase, "reduce_scatter", size, widths[0], often)
                yield each("parameter all-gather", "all_gather", size, widths[1])
    else:
        for unit in _units(one):
            yield each("forward compute", "all_gather", unit, widths[1], m)
            yield each("backward compute", "all_gather", unit, widths[1], m)
            yield each("backward compute", "reduce_scatter", unit, widths[0], m)
    if layout.pipeline_parallel > 1 and (one.first or one.last):
        table = shape.vocabulary_size // layout.tensor_parallel * shape.hidden_size
        size_bytes = table * one.gradient_bytes
        yield Calls("embedding", "embedding sync", "all_reduce", 2, size_bytes, 1)


def _optimizer(one: _Stage) -> Iterator[Calls]:
    """The norm of all gradients, for clipping: a number, over all ranks that hold parts of them."""
    layout = one.layout
    # Without ZeRO, context-parallel ranks and replicas have the same gradients.
    ranks = layout.ranks if layout.zero else layout.tensor_parallel * layout.pipeline_parallel
    yield Calls("optimizer", "optimizer", "all_reduce", ranks, _FP32, 1)


def _layer(one: _Stage) -> list[int]:
    """Elements of each of a layer's parameters on one rank."""
    h, f, t = one.shape.hidden_size, one.shape.ffn_hidden_size, one.layout.tensor_parallel
    norms, biases = [h] * 4, [3 * h // t, h, f // t, h]
    return [*norms, *biases, 3 * h * h // t, h * h // t, h * f // t, h * f // t]


def _chunks(one: _Stage) -> Iterator[list[list[int]]]:
    """The parameters of each model chunk, by bucket: Megatron-Core gives the word embeddings that
    two stages share one of their own, for the distributed optimizer."""
    shape, layout = one.shape, one.layout
    h, v = shape.hidden_size, layout.virtual_stages
    table = shape.vocabulary_size // layout.tensor_parallel * h
    shared = layout.pipeline_parallel > 1
    for chunk in range(v):
        own = _layer(one) * (one.layers // v)
        first, last = one.first and chunk == 0, one.last and chunk == v - 1
        own += [shape.sequence_length * h] * first + [h, h] * last
        if shared and (first or last):
            yield [own, [table]]
        else:
            yield [own + [table] * (first or last)]


def _padded(bucket: list[int], ranks: int) -> int:
    """Elements of a bucket, which all ranks have equal shares of."""
    starts = sum(-(-size // _PARAMETER_ALIGNMENT) * _PARAMETER_ALIGNMENT for size in bucket)
    multiple = math.lcm(ranks, _BUCKET_ALIGNMENT)
    return -(-starts // multiple) * multiple


def _units(one: _Stage) -> list[int]:
    """What ZeRO-3 gathers at once: a layer's parameters, or what stands before and after them."""
    everything = sum(sum(bucket) for chunk in _chunks(one) for bucket in chunk)
    layer = sum(_layer(one))
    rest = everything - one.layers * layer
    return [layer] * one.layers + ([rest] if rest else [])
