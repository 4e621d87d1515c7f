"""Predictions of an experiment's single configurations, and of one GPU's compute.

Data parallelism of the papers' models is closed forms, so that all plans are one evaluation.
Pipelines are run one by one. Open models train in data parallelism with the fused software of
today: nothing overlaps, each rank has the whole optimizer, and gradients are reduced in half
precision, as in `repro.train`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import permutations

import numpy as np

from repro.catalog.models.expert_volumes import all_to_all_bytes, held_parameters
from repro.catalog.models.open_models import OpenModel
from repro.catalog.models.papers import Model
from repro.catalog.models.trainable import Trainable, expert_ranks
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, ring_all_reduce_bytes, training_flops
from repro.catalog.phases import PHASES
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.software_stacks import read_stacks
from repro.errors import ReproError
from repro.predict.calibration.interval import half_width
from repro.predict.fused import memory as fused_memory
from repro.predict.fused import parameters as fused_parameters
from repro.predict.fused.iteration import adam_s, compute_passes_s
from repro.predict.fused.iteration import held_parameters as held_by_gpu
from repro.predict.fused.run import Run, decoder_runs
from repro.predict.memory import WIDTHS
from repro.predict.network.collectives import message_s, topology_s
from repro.predict.network.machine import Hops, Machine, machine, nic_bytes, placed, ring_hops
from repro.predict.operators.kernels import Kernels
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.iteration import predict_phases
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.predict.step.pipeline_iteration import predict_pipeline, stage_passes_s
from repro.predict.step.quantities import MEMORY, quantities
from repro.predict.workload import Array, Plan, workload

# All-to-alls per layer and pass: tokens to their experts and back.
_EXCHANGES = 2
# Embedding tables: input and output have their own.
_TABLES = 2
# Parts of a data-parallel iteration by phase; the other phases take no time.
_DATA_PARALLEL = {
    "forward compute": ("forward_compute",),
    "backward compute": ("backward_compute", "recompute"),
    "straggler wait": ("straggler_wait",),
    "gradient sync": ("gradient_sync",),
    "optimizer": ("optimizer",),
    "parameter all-gather": ("parameter_all_gather",),
    "other": ("other",),
}


@dataclass(frozen=True)
class ComputeTime:
    """Seconds of forward and backward compute of a micro batch on one GPU, with 90 % interval.

    `mfu` is the model FLOPs utilisation; `optimizer_s` is the step of the whole model.
    """

    value_s: float
    low_s: float
    high_s: float
    mfu: float
    optimizer_s: float


def compute_time(
    model: Trainable, cluster: Cluster, micro_batch_size: int, *, pipeline: bool = False
) -> ComputeTime:
    """Predict a micro batch's compute on one GPU without recomputation, and the optimizer's step.

    Parameters
    ----------
    pipeline
        Whether the model has the shape that was trained in pipelines.
    """
    if isinstance(model, OpenModel):
        run = _run(model, cluster.device, model.expert_parallel, micro_batch_size, 1)
        fused = fused_parameters.read_fused()
        seconds = compute_passes_s(run, fused.parameters).sum()
        optimizer_s = adam_s(run, fused.parameters, held_by_gpu(run, _TABLES).all)[0]
        log_width = fused_parameters.half_width(run, fused)[0]
    else:
        calibrated = calibration(cluster.calibration)
        plan = Plan(global_batch_size=micro_batch_size, micro_batch_size=micro_batch_size)
        one, _ = workload(model.family, model.full_size(pipeline), plan).flat()
        device = machine(cluster, calibrated.parameters)
        phases = predict_phases(one, device, calibrated.parameters)
        seconds = (phases.forward_compute + phases.backward_compute)[0]
        optimizer_s = phases.optimizer[0]
        log_width = half_width(one, cluster, calibrated)[0]
    value, width = float(seconds), float(np.exp(log_width))
    flops = training_flops(model.family, model.full_size(pipeline), micro_batch_size)
    return ComputeTime(
        value_s=value,
        low_s=value / width,
        high_s=value * width,
        mfu=flops / (value * cluster.device.peak_flops),
        optimizer_s=float(optimizer_s),
    )


def stage_times_s(model: Model, cluster: Cluster, micro_batch_size: int, stages: int) -> Array:
    """Predict forward and backward of a micro batch on each stage of a pipeline (stage, pass)."""
    plan = Plan(stages * micro_batch_size, micro_batch_size, pipeline_parallel=stages)
    parameters = calibration(cluster.calibration).parameters
    device = machine(cluster, parameters)
    w = workload(model.family, model.full_size(pipeline=True), plan)
    return np.stack(stage_passes_s(w, device, Kernels(device.gpu, parameters)), axis=1)


def predict_plans(
    studied: Trainable,
    plans: Sequence[Plan],
    machine: Machine,
    parameters: Parameters,
    *,
    pipeline: bool,
) -> Iterator[dict[str, Array]]:
    """Predict a model with each plan.

    Yields
    ------
    dict
        Quantities of a plan by name, with axes of `repro.predict.explore.experiments.predicted`.
        In data parallelism one rank and one node represent all. Empty if layers do not divide into
        the plan's stages.
    """
    if isinstance(studied, OpenModel):
        for plan in plans:
            yield _open_data_parallel(studied, plan, machine, parameters)
    elif pipeline:
        for plan in plans:
            yield _pipelines(studied, plan, machine, parameters)
    else:
        yield from _data_parallel(studied, plans, machine, parameters)


def _data_parallel(
    studied: Model, plans: Sequence[Plan], machine: Machine, parameters: Parameters
) -> Iterator[dict[str, Array]]:
    columns = {
        field.name: np.array([getattr(plan, field.name) for plan in plans])
        for field in fields(Plan)
    }
    rows, _ = workload(studied.family, studied.full_size(pipeline=False), Plan(**columns)).flat()
    predicted = quantities(rows, machine, parameters)
    time = np.atleast_2d(predicted["iteration_time_s"])
    phases = np.zeros((len(PHASES), *time.shape))
    for phase, parts in _DATA_PARALLEL.items():
        phases[PHASES.index(phase)] = sum(predicted[part] for part in parts)
    # A ring sends as much as it receives.
    rate = np.broadcast_to(predicted["fabric_gbps"], time.shape)
    memory = sum((predicted[part] for part in MEMORY), np.array(FRAMEWORK_BYTES))
    for row in range(len(plans)):
        yield {
            "iteration_time_s": time[None, :, row],
            "phase_time_s": phases[None, :, :, row],
            "rx_iteration_full_scale_gbps": rate[None, :, row],
            "tx_iteration_full_scale_gbps": rate[None, :, row],
            "memory_bytes": memory[[row]],
        }


def _pipelines(
    studied: Model, plan: Plan, machine: Machine, parameters: Parameters
) -> dict[str, Array]:
    """Predict every rank and node; a replica's quantities are those of all replicas."""
    w = workload(studied.family, studied.full_size(pipeline=True), plan)
    try:
        found = predict_pipeline(w, machine, parameters)
    except ReproError:
        return {}
    by_stage = {
        "iteration_time_s": np.broadcast_to(found.time_s, found.timeline.end_s.shape),
        "phase_time_s": found.phases_s,
        "p2p_time_s": found.timeline.timer_s,
        "p2p_wire_s": found.timeline.wire_s,
        "p2p_bytes_sent": found.sent_bytes,
    }
    rates = {
        f"{way}_iteration_full_scale_gbps": 8e-9 * np.multiply.outer(carried, 1 / found.time_s)
        for way, carried in (("rx", found.nic_received_bytes), ("tx", found.nic_sent_bytes))
    }
    return {
        **{name: np.repeat(a, int(w.data_parallel), axis=0) for name, a in by_stage.items()},
        **rates,
        "memory_bytes": np.array(found.memory_bytes),
    }


def _open_data_parallel(
    studied: OpenModel, plan: Plan, machine: Machine, parameters: Parameters
) -> dict[str, Array]:
    """Predict data parallelism with experts sharded across ranks."""
    gpus, sequences, batch = (
        np.asarray(size).item()
        for size in (plan.data_parallel, plan.micro_batch_size, plan.global_batch_size)
    )
    run = _run(studied, machine.gpu, gpus, sequences, batch // (sequences * gpus))
    fused = fused_parameters.read_fused().parameters
    forward, backward = compute_passes_s(run, fused)[:, 0]
    sent, carried_bytes = _open_messages(studied, run, machine, parameters)
    phases = {
        "forward compute": forward,
        "backward compute": backward,
        "straggler wait": fused.straggler_fraction * np.log2(gpus) * (forward + backward),
        "optimizer": adam_s(run, fused, held_by_gpu(run, _TABLES).all)[0],
        **sent,
    }
    # A value for each draw of the network's parameters, or a single one.
    phases = {name: np.ravel(seconds) for name, seconds in phases.items()}
    time_s = sum(phases.values(), start=np.zeros(1))
    rate = 8e-9 * carried_bytes / time_s[None]
    parts = fused_memory.memory(run, zero=0, widths=WIDTHS["half gradients"])
    return {
        "iteration_time_s": time_s[None],
        "phase_time_s": np.stack(
            [np.broadcast_to(phases.get(name, 0.0), time_s.shape) for name in PHASES]
        )[None],
        "rx_iteration_full_scale_gbps": rate,
        "tx_iteration_full_scale_gbps": rate,
        "memory_bytes": parts.total + fused_memory.FRAMEWORK_BYTES,
    }


def _open_messages(
    studied: OpenModel, run: Run, machine: Machine, parameters: Parameters
) -> tuple[dict[str, Array | float], float]:
    """Predict seconds of each phase of messages, and bytes through a node's NICs on average."""
    shape, ranks = studied.shape, np.arange(int(run.gpus[0]))
    experts, nodes = int(run.ep[0]), -(-len(ranks) // machine.gpus_per_node)
    common, own = (FULL_ELEMENT_BYTES * count for count in held_parameters(shape, experts))
    rings = [(common, ranks[:, None])]
    groups = ranks.reshape(-1, experts)
    if shape.experts:
        # Every `experts`-th rank has the same ones.
        rings.append((own, groups))
    exchanges = float(run.micro_batches[0]) * shape.layers * _EXCHANGES
    # Bytes from one rank to another in one exchange; a step has as many backward as forward.
    sent = all_to_all_bytes(shape, int(run.micro_batch[0]), experts, FULL_ELEMENT_BYTES)
    pair = sent / (2 * shape.layers * _EXCHANGES) / max(experts - 1, 1)
    every = [ends for group in groups for ends in permutations(group, 2)]
    pairs = Hops(*np.array(every, dtype=int).reshape(-1, 2).T)
    exchange_s: Array | float = 0.0
    if experts > 1:
        fused = fused_parameters.read_fused().parameters
        started = float(fused_parameters.by_software(run, fused.exchange)[0])
        one_s = parameters.hop_s + message_s(pair, pairs.flows(machine), machine) + started
        exchange_s = exchanges * one_s
    carried = 2 * exchanges * nic_bytes(pairs, pair, machine, nodes)[0]
    for size, members in rings:
        hop = ring_all_reduce_bytes(size, len(members))
        carried = carried + nic_bytes(ring_hops(members), hop, machine, nodes)[0]
    seconds = {
        "forward all-to-all": exchange_s,
        "backward all-to-all": exchange_s,
        "gradient sync": sum(
            topology_s("all_reduce", size, placed(members, machine), parameters)
            for size, members in rings
        ),
    }
    return seconds, float(carried.mean())


def _run(
    entry: OpenModel, device: Gpu, gpus: int, micro_batch_size: int, micro_batches: int
) -> Run:
    return decoder_runs(
        entry.shape,
        device,
        next(iter(read_stacks())),
        imbalance=[1],
        tp=1,
        pp=1,
        cp=1,
        ep=expert_ranks(entry, gpus),
        dp=gpus,
        vpp=1,
        zero_bubble=0,
        sharded=0,
        micro_batch=micro_batch_size,
        micro_batches=micro_batches,
        recompute=0,
        precision=0,
    )
