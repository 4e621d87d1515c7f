"""GPU memory of a training step, by part."""

from dataclasses import fields

import numpy as np

from repro.catalog.models.layers import classic_layer
from repro.catalog.models.volumes import embedding_parameters, stack_parameters
from repro.predict.memory import (
    MIXED,
    Kept,
    Memory,
    Widths,
    activation_bytes,
    in_flight,
    model_states,
)
from repro.predict.workload import Array, Workload

# What the framework, its kernels and its communication buffers take beside a training step.
FRAMEWORK_BYTES = 2e9
# Logits and the loss are in fp32.
_LOGIT_BYTES = 4
# Megatron-Core's softmax without Apex keeps its result in fp32 beside the one that is multiplied.
_TORCH_SOFTMAX_BYTES = 4


def stage_parameters(w: Workload, stage: Array | int = 0) -> Array:
    """Parameters of one GPU of a stage: the first has all embeddings, the last the words' again,
    those between have layers only."""
    embeddings = embedding_parameters(w)
    words = w.vocabulary_size * w.hidden_size
    last = np.where(np.equal(stage, w.pipeline_parallel - 1), words, 0.0)
    ends = np.where(np.equal(stage, 0), embeddings, last)
    count: Array = (stack_parameters(w.family, w) / w.pipeline_parallel + ends) / w.tensor_parallel
    return count


def layer_activation_bytes(
    w: Workload,
    decoder: bool = False,
    element: float = MIXED.element,
    dropout: bool = True,
    torch_softmax: bool = False,
) -> tuple[Array, Array]:
    """Count the activations of one layer and micro batch: kept, and of a recomputed layer.

    Scores are kept twice with dropout, with one mask; without the fused softmax in fp32 too. With
    elements of 2 bytes and f = 4 h the sum is s b h (10 + 24/t + 5 a s/(h t)) (Korthikanti et al.,
    2023, equations 1 to 6).
    """
    score = element + dropout * (element + 1) + torch_softmax * _TORCH_SOFTMAX_BYTES
    own = w.decoder_sequence_length if decoder else w.sequence_length
    b, t = w.micro_batch_size, w.tensor_parallel
    return activation_bytes(
        classic_layer(w, cross=decoder),
        Kept(element, operand=element, score=score, mask=float(dropout)),
        w.recompute,
        {"own": b * own, "encoder": b * w.sequence_length},
        b,
        t,
        np.where(w.sequence_parallel > 0, t, 1.0),
    )


def logits_bytes(w: Workload, element: float = MIXED.element) -> Array:
    """The fp32 logits of one micro batch, and what they are made of, unless that is fp32."""
    each = _LOGIT_BYTES + (element if element < _LOGIT_BYTES else 0.0)
    size: Array = each * w.tokens * w.vocabulary_size / w.tensor_parallel
    return size


def memory(
    w: Workload,
    stage: Array | int = 0,
    *,
    zero: Array | int | None = None,
    widths: Widths = MIXED,
    dropout: bool = True,
    torch_softmax: bool = False,
) -> Memory:
    """Memory of a flat workload's GPUs of a pipeline stage, in bytes.

    Parameters
    ----------
    stage
        From 0, the fullest but for large logits.
    zero
        What replicas share (`repro.predict.memory.model_states`); without it what the workload
        says: the optimizer's states, or nothing.
    widths
        Of a parameter and of an activation.
    dropout
        Whether masks are kept.
    torch_softmax
        Whether torch computes the softmax, as it does where Apex is not installed.
    """
    t, p, m = w.tensor_parallel, w.pipeline_parallel, w.micro_batches
    kinds = (False, True) if w.family == "t5" else (False,)
    each = [
        layer_activation_bytes(w, kind, widths.element, dropout, torch_softmax) for kind in kinds
    ]
    per_layer, again = sum(kept for kept, _ in each), each[0][1]
    layers = per_layer * w.layers / p * in_flight(stage, p, w.virtual_stages, m)
    sbh = w.sequence_length * w.micro_batch_size * w.hidden_size
    split = np.where(w.sequence_parallel > 0, t, 1.0)
    # The embedding's dropout mask on the first stage; the final norm's and the logits' input on the
    # last (Korthikanti et al., 2023, section 4.3).
    masks = np.where(np.equal(stage, 0), dropout * sbh / split * np.minimum(m, p), 0.0)
    last = np.equal(stage, p - 1)
    head = np.where(last, 2 * widths.element * sbh / split, 0.0)
    count = stage_parameters(w, stage)
    level = w.distributed_optimizer if zero is None else np.asarray(zero)
    # Of what is shared, one layer is whole while it computes.
    at_once = stack_parameters(w.family, w) / w.layers / t
    return Memory(
        **model_states(count, count / w.data_parallel, level, widths, at_once),
        activations=layers + again + masks + head,
        logits=np.where(last, logits_bytes(w, widths.element), 0.0),
    )


def fullest(w: Workload) -> Memory:
    """Memory of the stage that takes most: the first, or with large logits the last."""
    first, last = memory(w), memory(w, w.pipeline_parallel - 1)
    fuller = last.total > first.total
    parts = [one.name for one in fields(Memory)]
    return Memory(
        **{name: np.where(fuller, getattr(last, name), getattr(first, name)) for name in parts}
    )
