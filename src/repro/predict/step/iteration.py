"""Time of one training iteration in closed form, phase by phase."""

from dataclasses import dataclass, fields

import numpy as np

from repro.predict.network.collectives import (
    NOTHING_ENCODED,
    PLAIN,
    Encoding,
    Encodings,
    collective_s,
    message_s,
    topology_s,
)
from repro.predict.network.machine import Machine, neighbour_flows, strided
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters
from repro.predict.step.layers import (
    EMBEDDING_FORWARD_SHARE,
    LayerPasses,
    Pass,
    embedding_s,
    head_passes,
    layer_passes,
)
from repro.predict.step.memory import stage_parameters
from repro.predict.workload import Array, Workload

# Bytes per parameter that mixed-precision Adam moves: fp16 gradient to fp32 (6), its norm (4),
# scaling (8), Adam on weight, two moments and gradient (28), fp16 weight (6).
_OPTIMIZER_BYTES = 52


@dataclass(frozen=True)
class Phases:
    """Seconds of one iteration on the last pipeline stage, whose timers Megatron-LM prints.

    Phases add up to `iteration_time_s`. `pipeline_bubble` is waiting for the first micro batch and
    after the last, `forward_receive` messages between stages, `straggler_wait` waiting for slower
    GPUs. `gradient_sync`, `parameter_all_gather` and `tensor_parallel` are without communication
    that computing overlaps.
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
        """Sum of all phases."""
        return sum((getattr(self, field.name) for field in fields(self)), start=np.zeros(()))


def predict_phases(
    w: Workload,
    machine: Machine,
    parameters: Parameters,
    encodings: Encodings = NOTHING_ENCODED,
) -> Phases:
    """Predict every phase of an iteration.

    Parameters
    ----------
    w : Workload
        Flat (one-dimensional fields of one length).
    encodings : Encodings
        Encodings of what is communicated, except embeddings; coding counts as communication.

    Returns
    -------
    Phases
        Arrays of the workload's length, in seconds.
    """
    kernels = Kernels(machine.gpu, parameters)
    layers = _stage_passes(w, machine, kernels, encodings.tensor)
    head_forward, head_backward = head_passes(w, machine, kernels, encodings.tensor)
    every = layers.forward + layers.backward + layers.recompute
    middle = _total(every) + parameters.host_micro_batch_s
    embedding = embedding_s(w.micro_batch_size * w.sequence_length, w.hidden_size, kernels)
    # Without a pipeline one stage has both ends.
    own = np.where(w.pipeline_parallel > 1, 0.0, embedding)
    own_forward = EMBEDDING_FORWARD_SHARE * own
    last = middle + _total(head_forward) + _total(head_backward) + own
    receive = _receive_s(w, machine, parameters, encodings)
    bubble, m = bubble_s(w, middle + embedding, middle, last, receive), w.micro_batches
    busy = m * (last + receive) + bubble
    collectives = every.collectives + head_forward.collectives + head_backward.collectives
    return Phases(
        forward_compute=m * (layers.forward.compute + head_forward.compute + own_forward),
        backward_compute=m * (layers.backward.compute + head_backward.compute + own - own_forward),
        recompute=m * layers.recompute.compute,
        tensor_parallel=m * collectives,
        forward_receive=m * receive,
        pipeline_bubble=bubble,
        straggler_wait=parameters.straggler_fraction * np.log(w.gpus) * busy,
        gradient_sync=_exposed_sync_s(w, layers, machine, parameters, encodings.gradients),
        parameter_all_gather=parameter_gather_s(
            w, stage_parameters(w), machine, parameters, encodings.parameters
        ),
        embedding_sync=_embedding_sync_s(w, machine, parameters),
        optimizer=optimizer_s(
            stage_parameters(w), _stage_layers(w), w.distributed_optimizer, w.data_parallel, kernels
        ),
        other=m * parameters.host_micro_batch_s + parameters.host_iteration_s,
    )


def bubble_s(w: Workload, first: Array, middle: Array, last: Array, receive: Array) -> Array:
    """Predict how long the last stage waits in an iteration, without messages.

    It waits once for every other stage, before the first micro batch arrives and after the last
    one's gradients have left. Interleaving divides this by the number of chunks (Narayanan et al.,
    SC 2021, section 2.2.2). Each further micro batch adds the difference to the slowest stage.

    Parameters
    ----------
    first, middle, last
        Seconds of one micro batch, forward and backward, on the first stage, which also has the
        embedding, on each stage between two others, and on the last one, which has the logits.
    receive
        Seconds of a stage's messages, both ways and for all chunks.
    """
    p, v, m = w.pipeline_parallel, w.virtual_stages, w.micro_batches
    others = (p - 1) * (middle + receive) + first - middle
    slowest = np.maximum(first, last)
    return np.where(p > 1, others / v + (m - 1) * (slowest - last), 0.0)


def _exposed_sync_s(
    w: Workload,
    layers: LayerPasses,
    machine: Machine,
    parameters: Parameters,
    encoding: Encoding,
) -> Array:
    """Predict the part of the gradient sync that nothing overlaps.

    With overlap, all but the last layer's gradients can travel during the last backward pass.
    """
    wire = gradient_wire_s(w, stage_parameters(w), machine, parameters, encoding)
    last_layer = w.virtual_stages / _stage_layers(w)
    cover = _total(layers.backward) * (1 - last_layer)
    overlapped = np.maximum(wire - cover, wire * last_layer)
    exposed = np.where(w.overlap_gradient_sync > 0, overlapped, wire)
    return np.where(w.data_parallel > 1, exposed, 0.0)


def parameter_gather_s(
    w: Workload, count: Array, machine: Machine, parameters: Parameters, encoding: Encoding = PLAIN
) -> Array:
    """Predict the all-gather of `count` half-precision parameters of a sharded optimizer."""
    replicas = strided(w.data_parallel, w.tensor_parallel, machine)
    gather = collective_s("all_gather", 2 * count, replicas, parameters, encoding)
    return np.where((w.distributed_optimizer > 0) & (w.data_parallel > 1), gather, 0.0)


def _embedding_sync_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """Predict the all-reduce of word embeddings, which the first and the last stage have."""
    table = 2 * w.vocabulary_size * w.hidden_size / w.tensor_parallel
    stage = w.tensor_parallel * w.data_parallel
    apart = stage * np.maximum(w.pipeline_parallel - 1, 1)
    two = np.full_like(apart, 2.0)
    ends = strided(two, apart, machine, beside=stage)
    sync = topology_s("all_reduce", table, ends, parameters)
    return np.where(w.pipeline_parallel > 1, sync, 0.0)


def optimizer_s(
    count: Array, layers: Array, sharded: Array, data_parallel: Array, kernels: Kernels
) -> Array:
    """Predict Adam's step on a GPU's `count` parameters in these layers, or on its shard."""
    shards = np.where(sharded > 0, data_parallel, 1.0)
    traffic = kernels.traffic_s(_OPTIMIZER_BYTES * count / shards)
    return traffic + kernels.parameters.host_optimizer_layer_s * layers


def gradient_wire_s(
    w: Workload, count: Array, machine: Machine, parameters: Parameters, encoding: Encoding = PLAIN
) -> Array:
    """Predict how long gradients of `count` parameters are on the wire, overlapped or not.

    The sync is a reduce-scatter if the optimizer is sharded, else an all-reduce.
    """
    size = count * w.gradient_bytes
    replicas = strided(w.data_parallel, w.tensor_parallel, machine)
    scatter, reduce = (
        collective_s(operation, size, replicas, parameters, encoding)
        for operation in ("reduce_scatter", "all_reduce")
    )
    return np.where(w.distributed_optimizer > 0, scatter, reduce)


def _stage_layers(w: Workload) -> Array:
    """Count layers of one pipeline stage; t5 has as many decoder as encoder layers."""
    return w.layers * (2 if w.family == "t5" else 1) / w.pipeline_parallel


def _stage_passes(
    w: Workload, machine: Machine, kernels: Kernels, encoding: Encoding
) -> LayerPasses:
    """Predict one micro batch through the layers of one stage.

    Stages of t5 are assumed to have encoder and decoder layers in proportion.
    """
    count = w.layers / w.pipeline_parallel
    one = layer_passes(w, machine, kernels, encoding=encoding)
    passes: tuple[Pass, ...] = (one.forward, one.backward, one.recompute)
    if w.family == "t5":
        other = layer_passes(w, machine, kernels, decoder=True, encoding=encoding)
        more = (other.forward, other.backward, other.recompute)
        passes = tuple(own + add for own, add in zip(passes, more, strict=True))
    return LayerPasses(*(each.times(count) for each in passes))


def _receive_s(
    w: Workload, machine: Machine, parameters: Parameters, encodings: Encodings
) -> Array:
    """Predict how long a stage waits for a micro batch's messages, one each way per chunk.

    Each tensor-parallel rank sends its part of the activations to the next stage, whose ranks
    gather the others' parts (Narayanan et al., SC 2021, section 4.1).
    """
    t = w.tensor_parallel
    size = 2 * w.tokens * w.hidden_size
    flows = neighbour_flows(t * w.data_parallel, w.gpus, machine)
    sent = message_s(size / t, flows, machine, encodings.pipeline)
    group = strided(t, np.ones_like(t), machine)
    gather = topology_s("all_gather", size, group, parameters, encodings.tensor)
    hop = parameters.hop_s + sent + np.where(w.sequence_parallel > 0, 0.0, gather)
    return np.where(w.pipeline_parallel > 1, 2 * w.virtual_stages * hop, 0.0)


def _total(one: Pass) -> Array:
    return one.compute + one.collectives
