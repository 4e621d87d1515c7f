"""One iteration of training in pipelines, stage by stage: times, timers, bytes and memory.

Functions take one plan (fields without axes) with one rank per stage and replica: no tensor
parallelism, no interleaving. Arrays have a stage, or a boundary between two stages, on their first
axis. The first half of an encoder-decoder model's stages are encoder layers, the second half
decoder layers, as in Megatron-Core before 0.14; the first decoder stage has its own embeddings.
"""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.stages import (
    encoder_stages,
    layers_per_stage,
    position_embedding_stages,
    tokens_to_next_stage,
    word_embedding_stages,
)
from repro.catalog.models.volumes import (
    embedding_parameters,
    layer_parameters,
    ring_all_reduce_bytes,
    stack_parameters,
)
from repro.catalog.models.volumes import parameters as count_parameters
from repro.catalog.phases import MESSAGE_PHASES, P2P_TIMERS, PHASES
from repro.errors import ReproError
from repro.predict.memory import MIXED, in_flight, model_states
from repro.predict.network.collectives import message_s, topology_s
from repro.predict.network.machine import Hops, Machine, nic_bytes, placed, ring_hops
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters
from repro.predict.step.iteration import gradient_wire_s, optimizer_s, parameter_gather_s
from repro.predict.step.layers import (
    EMBEDDING_FORWARD_SHARE,
    embedding_s,
    head_passes,
    layer_passes,
)
from repro.predict.step.memory import (
    FRAMEWORK_BYTES,
    layer_activation_bytes,
    logits_bytes,
)
from repro.predict.step.schedule import Timeline, run_1f1b
from repro.predict.workload import Array, Workload

# Activations and their gradients travel in half precision.
_MESSAGE_BYTES = 2


@dataclass(frozen=True)
class PipelineIteration:
    """One iteration; all replicas of a stage take the same time.

    Attributes
    ----------
    time_s
        The iteration's time (...), the same on all ranks.
    phases_s
        Seconds by phase of `PHASES` (stage, phase, ...); they add up to `time_s` on every stage.
    timeline
        The pipeline's part of it, with Megatron's timers.
    sent_bytes
        Messages to neighbouring stages that a rank of each stage sends (stage,).
    nic_sent_bytes, nic_received_bytes
        Bytes through each node's NICs (node,): messages, embedding and gradient rings.
    memory_bytes
        Memory of the fullest GPU, with the framework's own.
    """

    time_s: Array
    phases_s: Array
    timeline: Timeline
    sent_bytes: Array
    nic_sent_bytes: Array
    nic_received_bytes: Array
    memory_bytes: float


def predict_pipeline(w: Workload, machine: Machine, parameters: Parameters) -> PipelineIteration:
    """Predict one iteration of `data_parallel` pipelines of `pipeline_parallel` stages each.

    Rank = stage x replicas + replica; ranks fill nodes in order. Stages synchronise gradients when
    all of them are done with the pipeline.

    Parameters
    ----------
    w : Workload
        One plan (fields without axes) without tensor parallelism and interleaving.
    parameters : Parameters
        Numbers, or draws (resample,), which become the last axis of all times.

    Raises
    ------
    ReproError
        The stages do not hold whole layers, or the plan is not covered.
    """
    check_stages(w)
    kernels = Kernels(machine.gpu, parameters)
    micro_batches, count = int(w.micro_batches), parameters_by_stage(w)
    forward, backward = stage_passes_s(w, machine, kernels)
    hops = _messages_s(w, machine, parameters)
    # The host's time per micro batch is part of the schedule, and shown as "other".
    host = np.asarray(parameters.host_micro_batch_s)
    timeline = run_1f1b(forward + host, backward, hops, hops, micro_batches)
    busy = timeline.end_s.max(axis=0)
    straggling = parameters.straggler_fraction * np.log(w.gpus) * busy
    gradients = np.array([gradient_wire_s(w, own, machine, parameters) for own in count])
    # All stages wait for the slowest stage's optimizer step and parameters.
    optimizers = [
        optimizer_s(own, layers, w.distributed_optimizer, w.data_parallel, kernels)
        for own, layers in zip(count, stage_layers(w).sum(axis=0), strict=True)
    ]
    phases = {
        "forward compute": micro_batches * forward,
        "backward compute": micro_batches * backward,
        **{
            name: timeline.timer_s[:, [P2P_TIMERS.index(timer) for timer in timers]].sum(axis=1)
            for name, timers in MESSAGE_PHASES.items()
        },
        "straggler wait": busy - timeline.end_s + straggling,
        "embedding sync": _embedding_sync_s(w, gradients, machine, parameters),
        "gradient sync": gradients,
        "optimizer": np.max(optimizers, axis=0),
        "parameter all-gather": parameter_gather_s(w, count.max(), machine, parameters),
        "other": micro_batches * host + np.asarray(parameters.host_iteration_s),
    }
    everywhere = [np.broadcast_to(phases.get(name, 0.0), timeline.end_s.shape) for name in PHASES]
    sent, received = _nic_bytes(w, machine)
    per_boundary = w.micro_batches * message_bytes(w)
    return PipelineIteration(
        time_s=np.sum(everywhere, axis=0)[0],
        phases_s=np.stack(everywhere, axis=1),
        timeline=timeline,
        # Forward to the next stage and back to the previous one.
        sent_bytes=np.append(per_boundary, 0.0) + np.append(0.0, per_boundary),
        nic_sent_bytes=sent,
        nic_received_bytes=received,
        memory_bytes=fullest_gpu_bytes(w),
    )


def check_stages(w: Workload) -> None:
    """Refuse a plan whose stages do not hold whole layers, or that this module does not cover.

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
    """Count layers without and with cross-attention (kind, stage)."""
    stages = int(w.pipeline_parallel)
    everywhere, nowhere = np.full(stages, w.layers / stages), np.zeros(stages)
    if w.family != "t5":
        return np.array([everywhere, nowhere])
    if stages == 1:
        return np.array([everywhere, everywhere])
    encodes = np.arange(stages) < encoder_stages(stages)
    return 2 * np.where([encodes, ~encodes], everywhere, nowhere)


def _embedded_tokens(w: Workload) -> Array:
    """Count tokens of a micro batch that each stage turns into vectors (stage,)."""
    tokens = np.zeros(int(w.pipeline_parallel))
    tokens[0] = w.sequence_length
    if w.family == "t5":
        decodes = position_embedding_stages(w.family, len(tokens))[-1]
        tokens[decodes] += w.decoder_sequence_length
    return w.micro_batch_size * tokens


def stage_passes_s(w: Workload, machine: Machine, kernels: Kernels) -> tuple[Array, Array]:
    """Predict forward and backward pass of one micro batch, the latter with recomputation.

    Returns
    -------
    tuple of Array
        Seconds (stage, ...).
    """
    tokens = _embedded_tokens(w)
    embedding = embedding_s(np.ones(()), w.hidden_size, kernels)
    passes = [
        (EMBEDDING_FORWARD_SHARE * embedding, (1 - EMBEDDING_FORWARD_SHARE) * embedding),
        tuple(one.compute for one in head_passes(w, machine, kernels)),
    ]
    amounts = [tokens, np.arange(len(tokens)) == len(tokens) - 1]
    for decoder, layers in enumerate(stage_layers(w)):
        if layers.any():
            one = layer_passes(w, machine, kernels, decoder=decoder == 1)
            passes.append((one.forward.compute, (one.backward + one.recompute).compute))
            amounts.append(layers)
    seconds = np.array(np.broadcast_arrays(*(way for both in passes for way in both)))
    forward, backward = (
        np.einsum("ks,k...->s...", np.array(amounts, float), seconds[way::2]) for way in (0, 1)
    )
    return forward, backward


def parameters_by_stage(w: Workload) -> Array:
    """Count trainable parameters of each stage (stage,), copies of embeddings on each."""
    plain, crossing = stage_layers(w)
    embeds = _embedded_tokens(w) > 0
    count: Array = plain * layer_parameters(w) + embeds * embedding_parameters(w)
    if w.family == "t5":
        count = count + crossing * layer_parameters(w, decoder=True)
    if not embeds[-1]:
        count[-1] += w.vocabulary_size * w.hidden_size
    # Besides layers and embeddings, a model has heads, and BERT also two token types.
    rest = count_parameters(w.family, w) - embedding_parameters(w) - stack_parameters(w.family, w)
    types = 2 * w.hidden_size if w.family == "bert" else 0.0
    count[0] += types
    count[-1] += rest - types
    return count


def memory_by_stage_bytes(w: Workload) -> Array:
    """Predict GPU memory of each stage (stage,), without the framework's own.

    Stage i of p holds the activations of min(p - i, m) micro batches (1F1B); the last one also the
    logits (Korthikanti et al., 2023, section 4.3).
    """
    # The embedding's dropout mask.
    kept = _embedded_tokens(w) * w.hidden_size
    again = np.zeros_like(kept)
    for decoder, layers in enumerate(stage_layers(w)):
        if layers.any():
            of_layer, recomputed = layer_activation_bytes(w, decoder == 1)
            kept = kept + layers * of_layer
            again = np.maximum(again, (layers > 0) * recomputed)
    stage = np.arange(len(kept))
    held = in_flight(stage, w.pipeline_parallel, w.virtual_stages, w.micro_batches)
    activations = kept * held + again
    activations[-1] += 4 * w.tokens * w.hidden_size + logits_bytes(w)
    count = parameters_by_stage(w)
    states = model_states(count, count / w.data_parallel, w.distributed_optimizer, MIXED)
    return sum(states.values(), activations)


def fullest_gpu_bytes(w: Workload) -> float:
    """Predict GPU memory of the stage that takes most, with the framework's own."""
    return float(memory_by_stage_bytes(w).max()) + FRAMEWORK_BYTES


def message_bytes(w: Workload) -> Array:
    """Count bytes of a micro batch over each boundary, forward or as gradients (boundary,)."""
    stages = int(w.pipeline_parallel)
    tokens = [tokens_to_next_stage(w.family, w, stages, stage) for stage in range(stages - 1)]
    size: Array = _MESSAGE_BYTES * w.micro_batch_size * np.array(tokens) * w.hidden_size
    return size


def embedding_stages(w: Workload) -> list[int]:
    """List stages with a copy of the word embeddings, which inputs and logits share."""
    return word_embedding_stages(w.family, int(w.pipeline_parallel))


def _ranks(w: Workload) -> Array:
    """Return the ranks of each stage (stage, replica)."""
    return np.arange(int(w.gpus)).reshape(int(w.pipeline_parallel), int(w.data_parallel))


def _messages_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """Predict seconds of a message over each boundary (boundary, ...), either way.

    If some replicas cross nodes and others do not, the slowest decides: all of them wait for each
    other in the gradient sync. Messages over different boundaries are assumed not to slow each
    other down.
    """
    ranks = _ranks(w)
    times = [
        parameters.hop_s + message_s(size, Hops(own, following).flows(machine), machine)
        for size, own, following in zip(message_bytes(w), ranks, ranks[1:], strict=False)
    ]
    return np.array(np.broadcast_arrays(*times)) if times else np.zeros((0,))


def _table_bytes(w: Workload) -> Array:
    size: Array = w.gradient_bytes * w.vocabulary_size * w.hidden_size
    return size


def _embedding_sync_s(
    w: Workload, gradients: Array, machine: Machine, parameters: Parameters
) -> Array:
    """Predict how long each stage waits, after its gradient sync, for the sum of all embeddings."""
    holders = embedding_stages(w)
    copies = placed(_ranks(w)[holders], machine)
    table = topology_s("all_reduce", _table_bytes(w), copies, parameters)
    summed_up = gradients[holders].max(axis=0) + table
    waiting: Array = np.maximum(gradients.max(axis=0), summed_up) - gradients
    return waiting


def _nic_bytes(w: Workload, machine: Machine) -> tuple[Array, Array]:
    """Count bytes sent and received by each node's NICs (node,)."""
    ranks, nodes = _ranks(w), -(-int(w.gpus) // machine.gpus_per_node)
    carried: list[tuple[Hops, Array | float]] = []
    for boundary, size in enumerate(w.micro_batches * message_bytes(w)):
        hops = Hops(ranks[boundary], ranks[boundary + 1])
        carried += [(hops, size), (hops.backward(), size)]
    copies = ranks[embedding_stages(w)]
    carried.append((ring_hops(copies), ring_all_reduce_bytes(_table_bytes(w), len(copies))))
    # A sharded optimizer's reduce-scatter and all-gather are the two halves of an all-reduce.
    halves = (w.gradient_bytes + 2) / 2 if w.distributed_optimizer > 0 else w.gradient_bytes
    for own, count in zip(ranks, parameters_by_stage(w), strict=True):
        size = ring_all_reduce_bytes(halves * count, w.data_parallel)
        carried.append((ring_hops(own[:, None]), size))
    parts = [nic_bytes(hops, size, machine, nodes) for hops, size in carried]
    return np.sum([sent for sent, _ in parts], axis=0), np.sum([got for _, got in parts], axis=0)
