"""GPU memory of a training step, whatever software runs it.

Activations of a layer, parts, what replicas share of them (Rajbhandari et al., ZeRO, SC 2020,
section 5), and the micro batches in flight on each stage (Korthikanti et al., 2023, section 4.2.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from repro.catalog.models.layers import Attention, Elements, Operation, elements
from repro.predict.workload import RECOMPUTE, Array


@dataclass(frozen=True)
class Widths:
    """Bytes of one parameter's weight, gradient, second copy of the weight and both moments, and of
    one element that is kept for the backward pass."""

    weight: Any
    gradient: Any
    master: Any
    moments: Any
    element: float


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

    Returns
    -------
    tuple
        Bytes that are kept for the backward pass; of a fully recomputed layer, bytes that are in
        memory beside them while its backward pass runs.
    """
    own, scores, others = tokens["own"], np.zeros(()), np.zeros(())
    for one in layer:
        if isinstance(one, Attention):
            read = tokens[one.reads]
            width = kept.element * one.query_width
            width = own * (width + (kept.element + kept.copy) * one.output_width)
            others = others + (width + read * kept.element * one.kv_width) / tensor_parallel
            scores = scores + kept.score * one.heads * own * read / sequences / tensor_parallel
        elif isinstance(one, Elements):
            split = sequence_parallel if one.splits == "sequence" else tensor_parallel
            each = kept.element * one.inputs + kept.operand * one.outputs + kept.mask * one.masked
            others = others + own * each / split
    # The first operation is a norm, whose input is the layer's.
    entered = kept.element * own * elements(layer)[0].inputs / sequence_parallel
    whole = others + scores
    by_mode = {"none": whole, "selective": others, "full": entered}
    size: Array = np.choose(recompute.astype(int), [by_mode[name] for name in RECOMPUTE])
    return size, np.where(recompute == RECOMPUTE.index("full"), whole, 0.0)


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

    def kept(level: int) -> Array:
        return np.where(zero >= level, np.minimum(own + at_once, held), held)

    return {
        "weights": widths.weight * kept(3),
        "gradients": trained * widths.gradient * kept(2),
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
