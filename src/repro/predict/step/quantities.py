"""Quantities that the performance model predicts, in blocks of configurations that fit a cache."""

from dataclasses import fields

import numpy as np

from repro.catalog.models.volumes import BACKWARD_PER_FORWARD, ring_all_reduce_bytes, training_flops
from repro.predict.memory import Memory
from repro.predict.network.machine import Machine
from repro.predict.parameters import Parameters
from repro.predict.step.iteration import Phases, gradient_wire_s, predict_phases
from repro.predict.step.memory import fullest, stage_parameters
from repro.predict.workload import Array, Workload, in_blocks, valid

PHASES = tuple(field.name for field in fields(Phases))
MEMORY = tuple(field.name for field in fields(Memory))


def iteration_times_s(w: Workload, machine: Machine, parameters: Parameters) -> Array:
    """Predict iteration times of a flat workload, in seconds; faster than `quantities`."""
    return in_blocks(
        w, lambda rows: {"time": predict_phases(rows, machine, parameters).iteration_time_s}
    )["time"]


def quantities(w: Workload, machine: Machine, parameters: Parameters) -> dict[str, Array]:
    """Predict every quantity of a flat workload, NaN where a plan cannot run.

    Returns
    -------
    dict
        By name: each phase, and each part of memory of the fullest stage; iteration_time_s,
        tokens_per_s_per_gpu, mfu, hfu; tensor_parallel_bytes, gradient_sync_bytes,
        parameter_all_gather_bytes and pipeline_bytes (of a stage between two others) that one GPU
        sends per iteration; fabric_bytes that one node's NICs send, fabric_gbps over the iteration
        and fabric_burst_gbps while gradients are on the wire.
    """
    return in_blocks(w, lambda rows: _quantities(rows, machine, parameters))


def _quantities(w: Workload, machine: Machine, parameters: Parameters) -> dict[str, Array]:
    phases = predict_phases(w, machine, parameters)
    parts = fullest(w)
    time = phases.iteration_time_s
    flops = training_flops(w.family, w, w.global_batch_size)
    peak = machine.gpu.peak_flops * w.gpus
    traffic = _traffic(w, machine)
    on_the_wire = gradient_wire_s(w, stage_parameters(w), machine, parameters)
    computed = {
        **{name: getattr(phases, name) for name in PHASES},
        **{name: getattr(parts, name) for name in MEMORY},
        "iteration_time_s": time,
        "tokens_per_s_per_gpu": w.global_batch_size * w.tokens / w.micro_batch_size / time / w.gpus,
        "mfu": flops / (time * peak),
        "hfu": _hardware_flops(w) / (time * peak),
        **traffic,
        "fabric_gbps": 8e-9 * traffic["fabric_bytes"] / time,
        "fabric_burst_gbps": 8e-9
        * np.divide(
            traffic["fabric_sync_bytes"],
            on_the_wire,
            out=np.zeros_like(time),
            where=on_the_wire > 0,
        ),
    }
    runs = valid(w)
    return {name: np.where(runs, values, np.nan) for name, values in computed.items()}


def _hardware_flops(w: Workload) -> Array:
    """Count FLOPs with recomputation of all layers' forward pass, or of the attention core.

    The formulas are those of Korthikanti et al., 2023, section 5 and appendix A.
    """
    passes = 1 + BACKWARD_PER_FORWARD
    model: Array = training_flops(w.family, w, w.global_batch_size)
    d = w.decoder_sequence_length if w.family == "t5" else 0.0
    logits = 2 * w.global_batch_size * w.tokens / w.micro_batch_size * w.hidden_size
    layers = model / passes - logits * w.vocabulary_size
    s = w.sequence_length
    # The paper also counts the core's backward pass twice.
    core = 12 * w.global_batch_size * w.layers * w.hidden_size * (s * s + d * d + d * s)
    return model + np.where(w.recompute == 2, layers, np.where(w.recompute == 1, core, 0.0))


def _traffic(w: Workload, machine: Machine) -> dict[str, Array]:
    """Count bytes that one GPU and one node's NICs send per iteration."""
    t, p, v, d = w.tensor_parallel, w.pipeline_parallel, w.virtual_stages, w.data_parallel
    activations = 2 * w.tokens * w.hidden_size
    # A layer has two all-reduces of its activations (three with cross-attention) each way.
    # Recomputation repeats the forward ones. Sequence parallelism adds an all-gather, half an
    # all-reduce, to each backward one.
    d_tokens = w.decoder_sequence_length if w.family == "t5" else 0.0
    per_pass = 2 * w.sequence_length + 3 * d_tokens
    passes = np.where(w.recompute == 2, 3.0, 2.0) + 0.5 * (w.sequence_parallel > 0)
    reduced = 2 * w.hidden_size * w.micro_batch_size * per_pass
    tensor = ring_all_reduce_bytes(reduced, t) * passes * w.layers / p * w.micro_batches
    sharded = w.distributed_optimizer > 0
    reduce = ring_all_reduce_bytes(stage_parameters(w) * w.gradient_bytes, d)
    reduce = reduce / np.where(sharded, 2.0, 1.0)
    gather = np.where(sharded, ring_all_reduce_bytes(2 * stage_parameters(w), d) / 2, 0.0)
    # Stages between two others send forward and backward, the first and the last one way.
    ways = np.where(p > 2, 2.0, np.where(p > 1, 1.0, 0.0))
    stage = ways * v * w.micro_batches * activations / t
    node = float(machine.gpus_per_node)
    # Every group of a node has a ring through its NICs if the group leaves the node.
    leaves = t * d > node
    rings = np.where(leaves & (d > 1), np.minimum(t, node), 0.0)
    # GPUs of a node whose next stage is on another node.
    neighbours = np.where(w.gpus > node, np.minimum(t * d, node), 0.0)
    across = np.where(t > node, tensor, 0.0)
    return {
        "tensor_parallel_bytes": tensor,
        "gradient_sync_bytes": reduce,
        "parameter_all_gather_bytes": gather,
        "pipeline_bytes": stage,
        "fabric_sync_bytes": reduce * rings,
        "fabric_bytes": (reduce + gather) * rings + stage * neighbours + across,
    }
