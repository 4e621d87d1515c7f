"""GPU memory of a training step, whatever software runs it.

Activations of a layer, parts, what replicas share of them (Rajbhandari et al., ZeRO, SC 2020,
section 5), and the micro batches in flight on each stage (Korthikanti et al., 2023, section 4.2.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from repro.catalog.models.layers import Attention, Elements, Linear, Operation, elements
from repro.predict.workload import RECOMPUTE, Array


@dataclass(frozen=True)
class Widths:
    """Bytes of one parameter's weight, gradient, second copy of the weight and both moments, and of
    one element that is kept for the backward pass.

    `gathered` are those of a sharded weight, and of its gradient, while it is whole, where they
    differ from those of shards.
    """

    weight: Any
    gradient: Any
    master: Any
    moments: Any
    element: float
    gathered: tuple[Any, Any] | None = None


MIXED = Widths(weight=2, gradient=4, master=4, moments=8, element=2)
# By what commands and figures call them.
WIDTHS: Mapping[str, Widths] = {
    # Weights in half precision (or fp8, as it is and transposed); gradients, weights and Adam's two
    # moments in fp32 (Korthikanti et al., 2023, figure 1: 18 bytes in all).
    "mixed": MIXED,
    # Gradients in half precision: 16 bytes (Rajbhandari et al., SC 2020, section 3.1).
    "half gradients": Widths(weight=2, gradient=2, master=4, moments=8, element=2),
    # Moments in bf16 too (DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.3.3).
    "half moments": Widths(weight=2, gradient=4, master=4, moments=4, element=2),
    # No second copy of the weights.
    "fp32": Widths(weight=4, gradient=4, master=0, moments=8, element=4),
}


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, without what the framework takes."""

    weights: Array
    gradients: Array
    optimizer_states: Array
    activations: Array
    logits: Array

    @property
    def states(self) -> Array:
        """What stays between iterations: weights, gradients and optimizer states."""
        return self.weights + self.gradients + self.optimizer_states

    @property
    def total(self) -> Array:
        """The sum of all parts."""
        return sum((getattr(self, one.name) for one in fields(self)), start=np.zeros(()))


@dataclass(frozen=True)
class Kept:
    """Bytes per element of what a layer keeps for its backward pass.

    Attributes
    ----------
    element
        Inputs of norms, activations and attention.
    operand
        Inputs of products.
    copy
        Attention's output once more, in the precision of products; 0 where that is `element`'s.
    score
        Each score of attention; 0 where fused attention keeps none.
    mask
        Dropout's mask of an element; 0 without dropout.
    """

    element: Any
    operand: Any
    copy: Any = 0.0
    score: Any = 0.0
    mask: Any = 0.0


def activation_bytes(
    layer: Sequence[Operation],
    kept: Kept,
    recompute: Array,
    tokens: Mapping[str, Array],
    sequences: Array | float,
    tensor_parallel: Array,
    sequence_parallel: Array,
    expert_tensor_parallel: Array | float = 1.0,
    keeps_projections: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Count the activations of one layer and micro batch, in bytes.

    Selective recomputation keeps no scores of attention, full recomputation only the layer's input.

    Parameters
    ----------
    recompute
        Indices in `RECOMPUTE`.
    tokens
        Tokens of the micro batch, by `repro.catalog.models.layers.Tokens`.
    sequences
        Sequences of the micro batch.
    tensor_parallel, sequence_parallel
        Ranks that divide widths, and the sequence between products.
    expert_tensor_parallel
        Ranks that divide an expert, each with all of its tokens.
    keeps_projections
        1 where selective recomputation keeps the layer's input and outputs of projections only:
        queries, keys and values, attention's and the MLP's.

    Returns
    -------
    tuple
        Bytes that are kept for the backward pass; of a fully recomputed layer, bytes that are in
        memory beside them while its backward pass runs.
    """
    own, scores, others = tokens["own"], np.zeros(()), np.zeros(())
    projected: Array = np.zeros(())
    for one in layer:
        if isinstance(one, Attention):
            read = tokens[one.reads]
            width = kept.element * one.query_width
            width = own * (width + (kept.element + kept.copy) * one.output_width)
            others = others + (width + read * kept.element * one.kv_width) / tensor_parallel
            scores = scores + kept.score * one.heads * own * read / sequences / tensor_parallel
            inputs = own * one.query_width + read * one.kv_width
            projected = projected + kept.element * inputs / tensor_parallel
        elif isinstance(one, Linear) and one.splits == "inputs" and one.experts is None:
            outputs = one.outputs * np.minimum(one.inputs, 1)
            projected = projected + kept.element * own * outputs / sequence_parallel
        elif isinstance(one, Elements):
            split = sequence_parallel if one.splits == "sequence" else tensor_parallel
            split = split / expert_tensor_parallel if one.routed else split
            each = kept.element * one.inputs + kept.operand * one.outputs + kept.mask * one.masked
            others = others + own * each / split
    # The first operation is a norm, whose input is the layer's.
    entered = kept.element * own * elements(layer)[0].inputs / sequence_parallel
    whole = others + scores
    selective = np.where(np.equal(keeps_projections, 1), entered + projected, others)
    by_mode = {"none": whole, "selective": selective, "full": entered}
    size: Array = np.choose(recompute.astype(int), [by_mode[name] for name in RECOMPUTE])
    again: Array = np.where(recompute == RECOMPUTE.index("full"), whole - entered, 0.0)
    return size, again


def model_states(
    held: Array,
    own: Array,
    zero: Array,
    widths: Widths,
    at_once: Array | float = 0.0,
    trained: Array | float = 1.0,
) -> dict[str, Array]:
    """Weights, gradients and optimizer states of a GPU, by the names of `Memory`.

    Parameters
    ----------
    held, own
        Parameters of the GPU where replicas share none, and its part where they share all.
    zero
        What they share: 0 nothing, 1 the optimizer's states, 2 gradients too, 3 weights too.
    at_once
        Parameters that are whole while they compute, of what is shared.
    trained
        Share of the parameters that have gradients and optimizer states.
    """

    whole = np.minimum(at_once, held - own)
    weight, gradient = widths.gathered or (widths.weight, widths.gradient)

    def kept(level: int, width: Any, gathered: Any) -> Array:
        size: Array = np.where(zero >= level, width * own + gathered * whole, width * held)
        return size

    return {
        "weights": kept(3, widths.weight, weight),
        "gradients": trained * kept(2, widths.gradient, gradient),
        "optimizer_states": trained
        * (widths.master + widths.moments)
        * np.where(zero >= 1, own, held),
    }


def in_flight(stage: Array | int, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """Micro batches whose activations a stage holds at once, in units of all its layers.

    1F1B: stage i of p holds min(p - i, m). Interleaved, it begins with 2 (p - i - 1) + (v - 1) p
    forward passes of one of its v chunks (Narayanan et al., SC 2021), and holds one more: on the
    first stage p (1 + (p - 1)/(p v)) micro batches.
    """
    behind = stages - 1 - stage
    passes = np.minimum(2 * behind + (chunks - 1) * stages + 1, micro_batches * chunks)
    held: Array = np.where(chunks > 1, passes / chunks, np.minimum(behind + 1, micro_batches))
    return held
