"""Passes over one micro batch: a layer's, by GPU and host, and those of a model's two ends."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.layers import (
    Operation,
    attentions,
    classic_layer,
    elements,
    messages,
    products,
)
from repro.predict.network.collectives import PLAIN, Encoding, topology_s
from repro.predict.network.machine import Machine, strided
from repro.predict.operators.kernels import Kernels
from repro.predict.workload import Array, Workload

# Kernels beside matrix products in a forward and a backward pass of a layer (norms, bias and
# activation, softmax, dropout and residual; transposes), each with its start and end.
_FORWARD_KERNELS, _BACKWARD_KERNELS = 12, 20
# Attention core, per score: softmax 4 (backward 6), dropout 5 (backward 5).
_SCORE_FORWARD, _SCORE_BACKWARD = 9, 11
# What Megatron-Core's softmax moves instead where Apex, and with it the fused one, is missing, and
# without dropout: scores to fp32 (6), masked in place (8), softmax (8), back (6); gradients to fp32
# (6), times the softmax (12), its gradient (12), masked in a copy (16), back (6). Over the above.
TORCH_SOFTMAX = (28 + 52) / (_SCORE_FORWARD + _SCORE_BACKWARD)
# The fused softmax of Megatron-LM takes batches of 4 rows of scores.
_SOFTMAX_BATCH = 4
# Share of a layer's launches that belong to the attention core.
_CORE_SHARE = 0.3

# The ends: the embedding, the logits and the loss.
# Bytes per logit that the loss moves on its way (fp16 to fp32, maximum, difference, exponential,
# sum, quotient) and back.
_LOSS_FORWARD, _LOSS_BACKWARD = 40, 20
# Bytes per element of the embedding: gather, positions, dropout; and their gradients.
_EMBEDDING_BYTES = 24
# The gather is a third of the embedding's traffic, its two gradients are the rest.
EMBEDDING_FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Pass:
    """One pass of one layer over one micro batch, in seconds.

    `compute` is what it takes without collectives, `collectives` what tensor parallelism adds to
    it. Host and GPU work at the same time: a pass lasts as long as the longer of the two.
    """

    compute: Array
    collectives: Array

    def __add__(self, other: "Pass") -> "Pass":
        return Pass(self.compute + other.compute, self.collectives + other.collectives)

    def times(self, count: Array | float) -> "Pass":
        """`count` such passes."""
        return Pass(self.compute * count, self.collectives * count)


@dataclass(frozen=True)
class LayerPasses:
    """A layer's forward pass, backward pass and what the backward pass recomputes before it."""

    forward: Pass
    backward: Pass
    recompute: Pass


def layer_passes(
    w: Workload,
    machine: Machine,
    kernels: Kernels,
    decoder: bool = False,
    encoding: Encoding = PLAIN,
) -> LayerPasses:
    """The passes of one layer.

    Parameters
    ----------
    decoder : bool
        A decoder layer of an encoder-decoder model: its own sequence, and cross-attention.
    encoding : Encoding
        Of what tensor parallelism communicates.
    """
    t, b, h = w.tensor_parallel, w.micro_batch_size, w.hidden_size
    s = w.decoder_sequence_length if decoder else w.sequence_length
    tokens = {"own": b * s, "encoder": b * w.sequence_length}
    layer = classic_layer(w, cross=decoder)
    p = kernels.parameters
    sequence_split = np.where(w.sequence_parallel > 0, t, 1.0)
    core_forward, core_backward = _core_s(w, kernels, layer, tokens)
    cores = len(attentions(layer))
    forward = core_forward + _FORWARD_KERNELS * cores * p.kernel_s
    backward = core_backward + _BACKWARD_KERNELS * cores * p.kernel_s
    for one in products(layer):
        m, (n, k) = tokens[one.reads], one.divided(t)
        forward = forward + kernels.gemm_s(m, n, k)
        backward = backward + kernels.gemm_s(m, k, n) + kernels.gemm_s(n, k, m)
    for kernel in elements(layer):
        count = tokens["own"] * kernel.width
        count = count / (sequence_split if kernel.splits == "sequence" else t)
        forward = forward + kernels.traffic_s(kernel.forward_bytes * count)
        backward = backward + kernels.traffic_s(kernel.backward_bytes * count)
    # An all-reduce behind attention and one behind the MLP, each way; with sequence parallelism an
    # all-gather and a reduce-scatter of the same volume, and in the backward pass one more
    # all-gather of each product's split input (Korthikanti et al., 2023, section 4.2.2).
    size = 2 * tokens["own"] * h
    group = strided(t, np.ones_like(t), machine)
    blocks = len(messages(layer, "tensor"))
    collectives = blocks * topology_s("all_reduce", size, group, p, encoding)
    gather = topology_s("all_gather", size, group, p, encoding)
    gathers = np.where(w.sequence_parallel > 0, blocks * gather, 0.0)

    parallel = t > 1
    unfused = np.mod(w.attention_heads * b / t, _SOFTMAX_BATCH) != 0
    host = cores * (p.host_layer_s + unfused * p.host_unfused_softmax_s)
    host = host + parallel * blocks * p.host_collective_s
    full, selective = w.recompute == 2, w.recompute == 1
    again = np.where(full, forward, np.where(selective, core_forward, 0.0))
    again_host = np.where(full, host, np.where(selective, _CORE_SHARE * host, 0.0))
    again_collectives = np.where(full, collectives, 0.0)
    # The host launches recomputation and backward pass in one go: only their sum has to wait.
    back = collectives + gathers
    whole = _pass(backward + again, back + again_collectives, host + again_host)
    own = _pass(backward, back, host)
    return LayerPasses(
        forward=_pass(forward, collectives, host),
        backward=own,
        recompute=Pass(whole.compute - own.compute, whole.collectives - own.collectives),
    )


def _core_s(
    w: Workload, kernels: Kernels, layer: list[Operation], tokens: dict[str, Array]
) -> tuple[Array, Array]:
    """Scores, softmax, dropout and context of a layer's attentions: forward and backward."""
    forward: Array = np.zeros(())
    backward: Array = np.zeros(())
    for one in attentions(layer):
        batch = w.micro_batch_size * one.heads / w.tensor_parallel
        queries, keys = (tokens[name] / w.micro_batch_size for name in ("own", one.reads))
        products = kernels.attention_gemm_s(queries, keys, one.head_dim, batch)
        products = products + kernels.attention_gemm_s(queries, one.head_dim, keys, batch)
        scores = batch * queries * keys * kernels.parameters.attention_passes
        forward = forward + products + kernels.traffic_s(_SCORE_FORWARD * scores)
        backward = backward + 2 * products + kernels.traffic_s(_SCORE_BACKWARD * scores)
    return forward, backward


def _pass(gpu: Array, collectives: Array, host: Array) -> Pass:
    computing = np.maximum(gpu, host)
    return Pass(computing, np.maximum(gpu + collectives, host) - computing)


def embedding_s(tokens: Array, hidden_size: Array, kernels: Kernels) -> Array:
    """One micro batch's embedding and its gradients."""
    return kernels.traffic_s(_EMBEDDING_BYTES * tokens * hidden_size)


def head_passes(
    w: Workload, machine: Machine, kernels: Kernels, encoding: Encoding = PLAIN
) -> tuple[Pass, Pass]:
    """Logits and loss of one micro batch, both ways; numbers per token are not encoded."""
    t, h, p = w.tensor_parallel, w.hidden_size, kernels.parameters
    logits = w.tokens * w.vocabulary_size / t
    efficiency = np.where(t > 1, p.logits_gemm_efficiency, p.logits_gemm_efficiency_alone)
    product = 2 * logits * h / (kernels.gpu.peak_flops * efficiency)
    # BERT's masked-token head has a dense layer and a norm before the logits.
    dense = kernels.gemm_s(w.tokens, h, h) if w.family == "bert" else np.zeros_like(h)
    # Three reductions of one number per token: its largest logit, its target's, the sum.
    group = strided(t, np.ones_like(t), machine)
    latency = 3 * topology_s("all_reduce", 4 * w.tokens, group, p)
    gathered = topology_s("all_reduce", 2 * w.tokens * h, group, p, encoding)
    return (
        Pass(product + dense + kernels.traffic_s(_LOSS_FORWARD * logits), latency),
        Pass(2 * product + 2 * dense + kernels.traffic_s(_LOSS_BACKWARD * logits), gathered),
    )
