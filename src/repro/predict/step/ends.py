"""What only the ends of a model compute: the embedding, the logits and the loss."""

import numpy as np

from repro.predict.network.machine import Machine
from repro.predict.network.transfers import all_reduce_s
from repro.predict.step.kernels import Kernels
from repro.predict.step.layers import Pass
from repro.predict.workload import Array, Workload

# Bytes per logit that the loss moves on its way (fp16 to fp32, maximum, difference, exponential,
# sum, quotient) and back.
_LOSS_FORWARD, _LOSS_BACKWARD = 40, 20
# Bytes per element of the embedding: gather, positions, dropout; and their gradients.
_EMBEDDING_BYTES = 24
# The gather is a third of the embedding's traffic, its two gradients are the rest.
EMBEDDING_FORWARD_SHARE = 1 / 3


def embedding_s(tokens: Array, hidden_size: Array, kernels: Kernels) -> Array:
    """One micro batch's embedding and its gradients."""
    return kernels.traffic_s(_EMBEDDING_BYTES * tokens * hidden_size)


def head_passes(w: Workload, machine: Machine, kernels: Kernels) -> tuple[Pass, Pass]:
    """Logits and loss of one micro batch: forward and backward."""
    t, h, p = w.tensor_parallel, w.hidden_size, kernels.parameters
    logits = w.tokens * w.vocabulary_size / t
    efficiency = np.where(t > 1, p.logits_gemm_efficiency, p.logits_gemm_efficiency_alone)
    product = 2 * logits * h / (kernels.gpu.peak_flops * efficiency)
    # BERT's masked-token head has a dense layer and a norm before the logits.
    dense = kernels.gemm_s(w.tokens, h, h) if w.family == "bert" else np.zeros_like(h)
    # Three reductions of one number per token: its largest logit, its target's, the sum.
    latency = 3 * all_reduce_s(4 * w.tokens, t, np.ones_like(t), machine, p)
    gathered = all_reduce_s(2 * w.tokens * h, t, np.ones_like(t), machine, p)
    return (
        Pass(product + dense + kernels.traffic_s(_LOSS_FORWARD * logits), latency),
        Pass(2 * product + 2 * dense + kernels.traffic_s(_LOSS_BACKWARD * logits), gathered),
    )
