"""The time of one training iteration, phase by phase."""

from dataclasses import dataclass, fields

import numpy as np

from repro.predict.collectives import all_reduce_s, half_all_reduce_s, message_s
from repro.predict.kernels import Kernels
from repro.predict.layers import LayerPasses, Pass, layer_passes
from repro.predict.machine import Machine
from repro.predict.memory import stage_parameters
from repro.predict.parameters import Parameters
from repro.predict.workload import Array, Workload

# Bytes per logit that the loss moves on its way (fp16 to fp32, maximum, difference, exponential,
# sum, quotient) and back.
_LOSS_FORWARD, _LOSS_BACKWARD = 40, 20
# Bytes per parameter that mixed-precision Adam moves: fp16 gradient to fp32 (6), its norm (4),
# scaling (8), Adam on weight, two moments and gradient (28), fp16 weight (6).
_OPTIMIZER_BYTES = 52
# Bytes per element of the embedding: gather, positions, dropout; and their gradients.
_EMBEDDING_BYTES = 24


@dataclass(frozen=True)
class Phases:
    """One iteration of the last pipeline stage, whose timers Megatron-LM prints; seconds.

    Phases add up to `iteration_time_s`. `pipeline_bubble` is waiting for the first micro batch and
    after the last, `forward_receive` messages between stages, `straggler_wait` waiting for slower
    GPUs. `gradient_sync`, `parameter_all_gather` and `tensor_parallel` are what is not hidden.
    """

    forward_compute: Array
    backward_compute: Array
    recompute: Array
    tensor_parallel: Array
    forward_receive: Array
    pipeline_bubble: Array
    straggler_wait: Array
    gradient_sync: Array
    parameter_all_gather: Array
    embedding_sync: Array
    optimizer: Array
    other: Array

    @property
    def iteration_time_s(self) -> Array:
        """The sum of all phases."""
        return sum((getattr(self, field.name) for field in fields(self)), start=np.zeros(()))


def predict_phases(w: Workload, machine: Machine, parameters: Parameters) -> Phases:
    """Predict every phase of an iteration.

    Parameters
    ----------
    w : Workload
        Flat (one-dimensional fields of one length).

    Returns
    -------
    Phases
        Arrays of the workload's length, in seconds.
    """
    kernels = Kernels(machine.gpu, parameters)
    t, p, v, d = w.tensor_parallel, w.pipeline_parallel, w.virtual_stages, w.data_parallel
    m, staged = w.micro_batches, p > 1
    layers = _stage_passes(w, machine, kernels)
    head_forward, head_backward = _head_passes(w, machine, kernels)
    embedding = kernels.traffic_s(
        _EMBEDDING_BYTES * w.micro_batch_size * w.sequence_length * w.hidden_size
    )

    hop = _hop_s(w, machine, parameters)
    per_pass = layers.forward + layers.backward + layers.recompute
    middle = per_pass.compute + per_pass.collectives + parameters.host_micro_batch_s
    head = _total(head_forward) + _total(head_backward)
    # Each chunk waits for one message on its way up and one on its way down.
    receive = np.where(staged, 2 * v * hop, 0.0)
    # 1F1B with uneven stages: every stage once, then the slowest for each further micro batch. The
    # first stage has the embedding, the last the logits; interleaving divides the fill.
    first, last = middle + embedding, middle + head
    slowest = np.maximum(first, last)
    alone = ~staged
    own = np.where(alone, embedding, 0.0)
    fill = np.where(
        staged, ((p - 1) * (middle + receive) + embedding) / v + (m - 1) * (slowest - last), 0.0
    )
    busy = m * (last + own + receive) + fill
    straggler = parameters.straggler_fraction * np.log(w.gpus) * busy

    sharded = w.distributed_optimizer > 0
    reduced = gradient_wire_s(w, machine, parameters)
    # Behind the gradients of its own layer, the rest of a backward pass hides a collective.
    share = v / _stage_layers(w)
    cover = _total(layers.backward) * (1 - share)
    exposed = np.where(
        w.overlap_gradient_sync > 0,
        np.maximum(reduced - cover, reduced * share),
        reduced,
    )
    gathered = np.where(
        sharded,
        half_all_reduce_s(2 * stage_parameters(w), d, t, machine, parameters),
        0.0,
    )
    table = 2 * w.vocabulary_size * w.hidden_size / t
    tied = np.where(
        staged,
        all_reduce_s(
            table, np.full_like(p, 2.0), t * d * np.maximum(p - 1, 1), machine, parameters
        ),
        0.0,
    )
    shards = np.where(sharded, d, 1.0)
    optimizer = kernels.traffic_s(
        _OPTIMIZER_BYTES * stage_parameters(w) / shards
    ) + parameters.host_optimizer_layer_s * _stage_layers(w)
    ones = np.ones_like(m)
    return Phases(
        forward_compute=m * (layers.forward.compute + head_forward.compute + own / 3),
        backward_compute=m * (layers.backward.compute + head_backward.compute + own * 2 / 3),
        recompute=m * layers.recompute.compute,
        tensor_parallel=m
        * (per_pass.collectives + head_forward.collectives + head_backward.collectives),
        forward_receive=m * receive,
        pipeline_bubble=fill,
        straggler_wait=straggler,
        gradient_sync=np.where(d > 1, exposed, 0.0),
        parameter_all_gather=np.where(d > 1, gathered, 0.0),
        embedding_sync=tied,
        optimizer=optimizer,
        other=m * parameters.host_micro_batch_s + parameters.host_iteration_s * ones,
    )


def gradient_wire_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """How long gradients are on the wire, hidden or not: a reduce-scatter where the optimizer is
    sharded, otherwise an all-reduce."""
    size = stage_parameters(w) * w.gradient_bytes
    links = (w.data_parallel, w.tensor_parallel, machine, parameters)
    return np.where(
        w.distributed_optimizer > 0,
        half_all_reduce_s(size, *links),
        all_reduce_s(size, *links),
    )


def _stage_layers(w: Workload) -> Array:
    """Layers of one pipeline stage; t5 has as many decoder as encoder layers."""
    return w.layers * (2 if w.family == "t5" else 1) / w.pipeline_parallel


def _stage_passes(w: Workload, machine: Machine, kernels: Kernels) -> LayerPasses:
    """One micro batch through the layers of one stage."""
    count = w.layers / w.pipeline_parallel
    one = layer_passes(w, machine, kernels)
    stage = [one.forward.times(count), one.backward.times(count), one.recompute.times(count)]
    if w.family == "t5":
        # Stages are taken to have encoder and decoder layers in proportion.
        other = layer_passes(w, machine, kernels, decoder=True)
        more = (other.forward, other.backward, other.recompute)
        stage = [have + add.times(count) for have, add in zip(stage, more, strict=True)]
    return LayerPasses(*stage)


def _head_passes(w: Workload, machine: Machine, kernels: Kernels) -> tuple[Pass, Pass]:
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


def _hop_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """A micro batch's activations to the next stage: each tensor-parallel rank sends its part and
    gathers the others' (Narayanan et al., SC 2021, section 4.1)."""
    t = w.tensor_parallel
    size = 2 * w.tokens * w.hidden_size
    sent = message_s(size / t, t * w.data_parallel, machine)
    gathered = np.where(
        w.sequence_parallel > 0,
        0.0,
        half_all_reduce_s(size, t, np.ones_like(t), machine, parameters),
    )
    return parameters.hop_s + sent + gathered


def _total(one: Pass) -> Array:
    return one.compute + one.collectives
