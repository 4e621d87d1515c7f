"""GPU memory of a training step, by part."""

from dataclasses import fields, replace

import numpy as np

from repro.catalog.models.volumes import embedding_parameters, stack_parameters
from repro.predict.memory import MIXED, Memory, Widths, in_flight, model_states
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


def activation_bytes_per_layer(
    w: Workload,
    decoder: bool = False,
    element: float = MIXED.element,
    dropout: bool = True,
    torch_softmax: bool = False,
) -> Array:
    """Activations that one layer keeps of one micro batch, less what is recomputed or split.

    Elements of e bytes: 4 s b h around the matrices, which sequence parallelism splits, 4 s b h in
    attention and 2 s b f in the MLP, which tensor parallelism splits, and a s^2 b scores. Dropout
    keeps a mask of a byte an element behind each of the two blocks, and scores twice with one more.
    With e = 2 and f = 4 h that is s b h (10 + 24/t + 5 a s/(h t)) (Korthikanti et al., 2023,
    equations 1 to 6). Without the fused softmax scores are kept in fp32 too.
    """
    t, a, h = w.tensor_parallel, w.attention_heads, w.hidden_size
    s = w.decoder_sequence_length if decoder else w.sequence_length
    sb = s * w.micro_batch_size
    split = np.where(w.sequence_parallel > 0, t, 1.0)
    score = element + dropout * (element + 1) + torch_softmax * _TORCH_SOFTMAX_BYTES
    core = score * a * s * sb / t
    around = h * (4 * element + 2 * dropout) / split
    inside = element * (4 * h + 2 * w.ffn_hidden_size) / t
    kept = sb * (around + inside)
    if decoder:
        # Cross-attention: scores with the encoder's tokens, whose keys and values it has.
        encoded = w.sequence_length * w.micro_batch_size
        core = core + score * a * s * encoded / t
        kept = kept + sb * h * ((2 * element + dropout) / split + 2 * element / t)
        kept = kept + 2 * element * encoded * h / t
    inputs = element * sb * h / split
    return np.choose(w.recompute.astype(int), [kept + core, kept, inputs])


def recomputed_layer_bytes(
    w: Workload, decoder: bool = False, element: float = MIXED.element, dropout: bool = True
) -> Array:
    """A fully recomputed layer, which is in memory as a whole while its backward pass runs."""
    nothing = replace(w, recompute=np.zeros_like(w.recompute))
    whole = activation_bytes_per_layer(nothing, decoder, element, dropout)
    return np.where(w.recompute == 2, whole, 0.0)


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
    per_layer = sum(
        activation_bytes_per_layer(w, kind, widths.element, dropout, torch_softmax)
        for kind in kinds
    )
    again = recomputed_layer_bytes(w, False, widths.element, dropout)
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
