"""One iteration of training in pipelines, stage by stage: times, timers, bytes and memory."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.volumes import ring_all_reduce_bytes
from repro.catalog.phases import MESSAGE_PHASES, P2P_TIMERS, PHASES
from repro.predict.network.collectives import collective_s, message_s, topology_s
from repro.predict.network.machine import Hops, Machine, nic_bytes, placed, ring_hops, strided
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters
from repro.predict.step.iteration import optimizer_s
from repro.predict.step.schedule import Timeline, run_1f1b
from repro.predict.step.stages import (
    check_stages,
    embedding_stages,
    fullest_gpu_bytes,
    message_bytes,
    parameters_by_stage,
    stage_layers,
    stage_passes_s,
)
from repro.predict.workload import Array, Workload


@dataclass(frozen=True)
class PipelineIteration:
    """One iteration; all replicas of a stage take the same time.

    Attributes
    ----------
    time_s
        The iteration's time (...), the same on all ranks.
    phases_s
        By phase of `PHASES` (stage, phase, ...); they add up to `time_s` on every stage.
    timeline
        The pipeline's part of it, with Megatron's timers.
    sent_bytes
        Messages to neighbouring stages that a rank of each stage sends (stage,).
    nic_sent_bytes, nic_received_bytes
        Through each node's NICs (node,): messages, embedding and gradient rings.
    memory_bytes
        On the fullest GPU, with the framework's own.
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
    micro_batches = int(w.micro_batches)
    forward, backward = stage_passes_s(w, machine, kernels)
    hops = _messages_s(w, machine, parameters)
    # The host's time per micro batch is part of the schedule, and shown as "other".
    host = np.asarray(parameters.host_micro_batch_s)
    timeline = run_1f1b(forward + host, backward, hops, hops, micro_batches)
    busy = timeline.end_s.max(axis=0)
    straggling = parameters.straggler_fraction * np.log(w.gpus) * busy
    gradients, embeddings = _syncs_s(w, machine, parameters)
    phases = {
        "forward compute": micro_batches * forward,
        "backward compute": micro_batches * backward,
        **{
            name: sum(
                (timeline.timer_s[:, P2P_TIMERS.index(timer)] for timer in timers), np.zeros(())
            )
            for name, timers in MESSAGE_PHASES.items()
        },
        "straggler wait": busy - timeline.end_s + straggling,
        "embedding sync": embeddings,
        "gradient sync": gradients,
        "optimizer": _slowest_optimizer_s(w, kernels),
        "parameter all-gather": _parameter_gather_s(w, machine, parameters),
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


def _ranks(w: Workload, stage: int) -> Array:
    """The ranks of a stage, one per replica."""
    replicas = int(w.data_parallel)
    return stage * replicas + np.arange(replicas)


def _boundary(w: Workload, boundary: int) -> Hops:
    return Hops(_ranks(w, boundary), _ranks(w, boundary + 1))


def _messages_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """A micro batch's message over each boundary (boundary, ...), either way.

    Where some replicas cross nodes and others do not, the slowest replica decides: all of them wait
    for each other in the gradient sync. Messages over different boundaries at the same time are
    taken to be rare, and not to slow each other down.
    """
    times = [
        parameters.hop_s + message_s(size, _boundary(w, boundary).flows(machine), machine)
        for boundary, size in enumerate(message_bytes(w))
    ]
    return np.array(np.broadcast_arrays(*times)) if times else np.zeros((0,))


def _copies(w: Workload) -> Array:
    """Ranks that hold copies of the same word embeddings (copy, replica)."""
    return np.array([_ranks(w, stage) for stage in embedding_stages(w)])


def _table_bytes(w: Workload) -> Array:
    size: Array = w.gradient_bytes * w.vocabulary_size * w.hidden_size
    return size


def _syncs_s(w: Workload, machine: Machine, parameters: Parameters) -> tuple[Array, Array]:
    """Each stage's gradient sync, and how long it then waits until the last one has summed up its
    copy of the embeddings (stage, ...)."""
    reduce = "reduce_scatter" if w.distributed_optimizer > 0 else "all_reduce"
    replicas = strided(w.data_parallel, np.ones(()), machine)
    gradients = np.array(
        [
            collective_s(reduce, size, replicas, parameters)
            for size in parameters_by_stage(w) * w.gradient_bytes
        ]
    )
    copies = placed(_copies(w), machine)
    table = topology_s("all_reduce", _table_bytes(w), copies, parameters)
    summed_up = gradients[embedding_stages(w)].max(axis=0) + table
    return gradients, np.maximum(gradients.max(axis=0), summed_up) - gradients


def _parameter_gather_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """The slowest stage's all-gather of the half-precision parameters of a sharded optimizer."""
    if w.distributed_optimizer == 0:
        return np.zeros(())
    size = 2 * parameters_by_stage(w).max()
    replicas = strided(w.data_parallel, np.ones(()), machine)
    return collective_s("all_gather", size, replicas, parameters)


def _slowest_optimizer_s(w: Workload, kernels: Kernels) -> Array:
    """Adam's step on the stage that takes longest, which the others wait for."""
    layers = stage_layers(w).sum(axis=0)
    steps = [
        optimizer_s(count, layers[stage], w.distributed_optimizer, w.data_parallel, kernels)
        for stage, count in enumerate(parameters_by_stage(w))
    ]
    slowest: Array = np.array(steps).max(axis=0)
    return slowest


def _nic_bytes(w: Workload, machine: Machine) -> tuple[Array, Array]:
    """Bytes sent and received by each node's NICs (node,)."""
    nodes = -(-int(w.gpus) // machine.gpus_per_node)
    carried: list[tuple[Hops, Array | float]] = []
    for boundary, size in enumerate(w.micro_batches * message_bytes(w)):
        hops = _boundary(w, boundary)
        carried += [(hops, size), (hops.backward(), size)]
    copies = _copies(w)
    carried.append((ring_hops(copies), ring_all_reduce_bytes(_table_bytes(w), len(copies))))
    # A sharded optimizer's reduce-scatter and all-gather are the two halves of an all-reduce.
    halves = (w.gradient_bytes + 2) / 2 if w.distributed_optimizer > 0 else w.gradient_bytes
    for stage, count in enumerate(parameters_by_stage(w)):
        ring = ring_hops(_ranks(w, stage)[:, None])
        carried.append((ring, ring_all_reduce_bytes(halves * count, w.data_parallel)))
    parts = [nic_bytes(hops, size, machine, nodes) for hops, size in carried]
    return np.sum([sent for sent, _ in parts], axis=0), np.sum([got for _, got in parts], axis=0)
