"""GPU memory of a training step, by part."""

from dataclasses import dataclass, replace

import numpy as np

from repro.catalog.volumes import embedding_parameters, stack_parameters
from repro.predict.workload import Array, Workload

# Bytes per parameter: fp16 weight and gradient, fp32 weight, two moments and gradient of mixed
# precision Adam as Megatron-LM keeps them (Korthikanti et al., 2023, figure 1: 18 B/parameter with
# fp32 gradients accumulated beside fp16 weights).
WEIGHT_BYTES, GRADIENT_BYTES, MASTER_BYTES, ADAM_BYTES = 2, 4, 4, 8
# What the framework, its kernels and its communication buffers take beside a training step.
FRAMEWORK_BYTES = 2e9


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU: the first pipeline stage, which holds most activations."""

    weights: Array
    gradients: Array
    optimizer_states: Array
    activations: Array

    @property
    def total(self) -> Array:
        """The sum of all parts, without the framework's own (`FRAMEWORK_BYTES`)."""
        return self.weights + self.gradients + self.optimizer_states + self.activations


def stage_parameters(w: Workload) -> Array:
    """Parameters of one GPU of the first stage; the last has as many."""
    layers = stack_parameters(w.family, w) / w.pipeline_parallel
    count: Array = (layers + embedding_parameters(w)) / w.tensor_parallel
    return count


def activation_bytes_per_layer(w: Workload, decoder: bool = False) -> Array:
    """Activations that one layer keeps of one micro batch (Korthikanti et al., 2023, equations 1
    to 6): s b h (10 + 24/t + 5 a s/(h t)), less what is recomputed or split."""
    t, a, h = w.tensor_parallel, w.attention_heads, w.hidden_size
    s = w.decoder_sequence_length if decoder else w.sequence_length
    sbh = s * w.micro_batch_size * h
    split = np.where(w.sequence_parallel > 0, t, 1.0)
    core = 5 * a * s * s * w.micro_batch_size / t
    kept = sbh * (10 / split + 24 / t)
    if decoder:
        # Cross-attention: scores with the encoder's tokens, and as much again as self-attention.
        core = core + 5 * a * s * w.sequence_length * w.micro_batch_size / t
        kept = kept + sbh * (5 / split + 8 / t) + 4 * w.sequence_length * w.micro_batch_size * h / t
    inputs = 2 * sbh / split
    return np.choose(w.recompute.astype(int), [kept + core, kept, inputs])


def recomputed_layer_bytes(w: Workload, decoder: bool = False) -> Array:
    """A fully recomputed layer, which is in memory as a whole while its backward pass runs."""
    nothing = replace(w, recompute=np.zeros_like(w.recompute))
    return np.where(w.recompute == 2, activation_bytes_per_layer(nothing, decoder), 0.0)


def logits_bytes(w: Workload) -> Array:
    """The fp32 logits of one micro batch."""
    size: Array = 4 * w.tokens * w.vocabulary_size / w.tensor_parallel
    return size


def memory(w: Workload) -> Memory:
    """Memory of a flat workload's GPUs, in bytes."""
    t, p, v = w.tensor_parallel, w.pipeline_parallel, w.virtual_stages
    per_layer = activation_bytes_per_layer(w)
    if w.family == "t5":
        per_layer = per_layer + activation_bytes_per_layer(w, decoder=True)
    # The first stage of 1F1B holds as many micro batches as there are stages; interleaving adds
    # (p-1)/(p v) of them (Korthikanti et al., 2023, section 4.2.3).
    in_flight = np.minimum(w.micro_batches, p) * np.where(v > 1, 1 + (p - 1) / (p * v), 1.0)
    layers = per_layer * w.layers / p * in_flight
    transient = recomputed_layer_bytes(w)
    sbh = w.sequence_length * w.micro_batch_size * w.hidden_size
    split = np.where(w.sequence_parallel > 0, t, 1.0)
    embeddings = sbh / split * np.minimum(w.micro_batches, p)
    # Final norm, logits' input and fp32 logits stand where the last stage is the first.
    head = np.where(p == 1, 4 * sbh / split + logits_bytes(w), 0.0)
    count = stage_parameters(w)
    shards = np.where(w.distributed_optimizer > 0, w.data_parallel, 1.0)
    return Memory(
        weights=WEIGHT_BYTES * count,
        gradients=GRADIENT_BYTES * count,
        optimizer_states=(MASTER_BYTES + ADAM_BYTES) * count / shards,
        activations=layers + transient + embeddings + head,
    )
