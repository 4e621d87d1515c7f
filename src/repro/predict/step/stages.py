"""The stages of one pipeline: what each computes, hands on and holds.

Every function takes one plan (fields without axes) with one rank per stage: no tensor parallelism,
no interleaving. Arrays have a stage, or a boundary between two stages, on their first axis.

The first half of an encoder-decoder model's stages are encoder layers, the second half decoder
layers, as in Megatron-Core before 0.14; the first decoder stage has embeddings of its own.
"""

import numpy as np

from repro.catalog.models.papers import Family
from repro.catalog.models.stages import (
    encoder_stages,
    layers_per_stage,
    position_embedding_stages,
    tokens_to_next_stage,
    word_embedding_stages,
)
from repro.catalog.models.volumes import layer_parameters
from repro.errors import ReproError
from repro.predict.memory import MIXED, in_flight, model_states
from repro.predict.network.machine import Machine
from repro.predict.operators.kernels import Kernels
from repro.predict.step.layers import (
    EMBEDDING_FORWARD_SHARE,
    embedding_s,
    head_passes,
    layer_passes,
)
from repro.predict.step.memory import (
    FRAMEWORK_BYTES,
    activation_bytes_per_layer,
    logits_bytes,
    recomputed_layer_bytes,
)
from repro.predict.workload import Array, Workload

# Half precision, which activations and their gradients travel in.
_MESSAGE_BYTES = 2


def check_stages(w: Workload) -> None:
    """Refuse a plan whose stages do not hold whole layers, or that these functions do not cover.

    Raises
    ------
    ReproError
        The message names the field, its value and what is allowed.
    """
    if w.tensor_parallel > 1 or w.virtual_stages > 1:
        raise ReproError(
            f"tensor_parallel {w.tensor_parallel:g}, virtual_stages {w.virtual_stages:g}: "
            f"pipelines are predicted stage by stage with 1 of both only"
        )
    layers_per_stage(w.family, int(w.layers), int(w.pipeline_parallel))


def stage_layers(w: Workload) -> Array:
    """Layers without and with cross-attention (kind, stage)."""
    stages = int(w.pipeline_parallel)
    everywhere, nowhere = np.full(stages, w.layers / stages), np.zeros(stages)
    if w.family != "t5":
        return np.array([everywhere, nowhere])
    if stages == 1:
        return np.array([everywhere, everywhere])
    encodes = np.arange(stages) < encoder_stages(stages)
    return 2 * np.where([encodes, ~encodes], everywhere, nowhere)


def embedding_stages(w: Workload) -> list[int]:
    """Stages with a copy of the word embeddings, which inputs and logits share."""
    return word_embedding_stages(w.family, int(w.pipeline_parallel))


def message_bytes(w: Workload) -> Array:
    """What one micro batch hands over each boundary, forward and as gradients back (boundary,)."""
    stages = int(w.pipeline_parallel)
    tokens = [tokens_to_next_stage(w.family, w, stages, stage) for stage in range(stages - 1)]
    size: Array = _MESSAGE_BYTES * w.micro_batch_size * np.array(tokens) * w.hidden_size
    return size


def stage_passes_s(w: Workload, machine: Machine, kernels: Kernels) -> tuple[Array, Array]:
    """Forward and backward pass of one micro batch, recomputation in the latter (stage, ...)."""
    layers = stage_layers(w)
    forward: list[Array] = [np.zeros(())] * layers.shape[1]
    backward = list(forward)
    for kind, counts in enumerate(layers):
        if counts.any():
            one = layer_passes(w, machine, kernels, decoder=kind == 1)
            again = one.backward + one.recompute
            for stage, count in enumerate(counts):
                forward[stage] = forward[stage] + count * one.forward.compute
                backward[stage] = backward[stage] + count * again.compute
    for stage, tokens in _embedded_tokens(w).items():
        embedding = embedding_s(tokens, w.hidden_size, kernels)
        forward[stage] = forward[stage] + EMBEDDING_FORWARD_SHARE * embedding
        backward[stage] = backward[stage] + (1 - EMBEDDING_FORWARD_SHARE) * embedding
    head_forward, head_backward = head_passes(w, machine, kernels)
    forward[-1] = forward[-1] + head_forward.compute
    backward[-1] = backward[-1] + head_backward.compute
    stages = len(forward)
    together = np.array(np.broadcast_arrays(*forward, *backward))
    return together[:stages], together[stages:]


def parameters_by_stage(w: Workload) -> Array:
    """Trainable parameters of each stage (stage,), copies of embeddings counted on each."""
    h, vocabulary = w.hidden_size, w.vocabulary_size
    plain, crossing = stage_layers(w)
    count: Array = plain * layer_parameters(w)
    if w.family == "t5":
        count = count + crossing * layer_parameters(w, decoder=True)
    embedded = list(_embedded_tokens(w))
    count[embedded] += (vocabulary + w.sequence_length) * h
    if w.family == "bert":
        count[0] += 2 * h
    if len(count) - 1 not in embedded:
        count[-1] += vocabulary * h
    count[-1] += _head_parameters(w)
    return count


def memory_by_stage_bytes(w: Workload) -> Array:
    """GPU memory of each stage (stage,), without the framework's own.

    Stage i of p holds the activations of min(p - i, m) micro batches (1F1B); the last one also the
    logits (Korthikanti et al., 2023, section 4.3).
    """
    stages = int(w.pipeline_parallel)
    kinds = [False, True] if w.family == "t5" else [False]
    layers = stage_layers(w)
    kept = sum(
        layers[kind] * activation_bytes_per_layer(w, decoder) for kind, decoder in enumerate(kinds)
    )
    transient = np.max(
        [
            np.where(layers[kind] > 0, recomputed_layer_bytes(w, decoder), 0.0)
            for kind, decoder in enumerate(kinds)
        ],
        axis=0,
    )
    for stage, tokens in _embedded_tokens(w).items():
        # The embedding's dropout mask.
        kept[stage] += tokens * w.hidden_size
    held = in_flight(np.arange(stages), w.pipeline_parallel, w.virtual_stages, w.micro_batches)
    activations = kept * held + transient
    activations[-1] += 4 * w.tokens * w.hidden_size + logits_bytes(w)
    count = parameters_by_stage(w)
    states = model_states(count, count / w.data_parallel, w.distributed_optimizer, MIXED)
    return sum(states.values(), activations)


def fullest_gpu_bytes(w: Workload) -> float:
    """GPU memory of the stage that takes most, with the framework's own."""
    return float(memory_by_stage_bytes(w).max()) + FRAMEWORK_BYTES


def _embedded_tokens(w: Workload) -> dict[int, Array]:
    """Stages that turn tokens into vectors, and how many of a micro batch."""
    b = w.micro_batch_size
    tokens = {0: b * w.sequence_length}
    if w.family == "t5":
        first_decoder = position_embedding_stages(w.family, int(w.pipeline_parallel))[-1]
        tokens[first_decoder] = tokens.get(first_decoder, 0.0) + b * w.decoder_sequence_length
    return tokens


def _head_parameters(w: Workload) -> Array:
    """What comes after the last layer, beside the word embeddings (`volumes.parameters`)."""
    h, vocabulary = w.hidden_size, w.vocabulary_size
    norm = 2 * h
    dense = h * h + h
    by_family: dict[Family, Array] = {
        "gpt": norm,
        "bert": norm + (dense + norm + vocabulary) + (dense + 2 * h + 2),
        "t5": vocabulary,
    }
    return by_family[w.family]
