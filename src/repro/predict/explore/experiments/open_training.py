"""Open models trained in data parallelism as experiments do: passes by the model of fused steps,
collectives on the cluster's links.

Nothing overlaps, each rank has the whole optimizer, and gradients are reduced in half precision, as
in `repro.train`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from repro.catalog.models.expert_volumes import all_to_all_bytes, held_parameters
from repro.catalog.models.open_models import OpenModel
from repro.catalog.models.trainable import expert_ranks
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, ring_all_reduce_bytes
from repro.catalog.phases import PHASES
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.predict.explore.experiments.configurations import Configuration
from repro.predict.fused.iteration import adam_s, compute_passes_s
from repro.predict.fused.iteration import held_parameters as held_by_gpu
from repro.predict.fused.memory import FRAMEWORK_BYTES, memory
from repro.predict.fused.parameters import by_software, half_width, read_fused
from repro.predict.fused.run import Run
from repro.predict.memory import WIDTHS
from repro.predict.network.collectives import message_s, topology_s
from repro.predict.network.machine import Machine
from repro.predict.network.placement import (
    Hops,
    nic_bytes,
    placed,
    ring_hops,
)
from repro.predict.parameters import Parameters
from repro.predict.tables.training import read_runs, shape_columns
from repro.predict.workload import Array

# Tokens to their experts and back.
_EXCHANGES = 2
# Input and output have a table each.
_TABLES = 2


def open_compute_time(
    entry: OpenModel, cluster: Cluster, micro_batch_size: int
) -> tuple[float, float, float]:
    """Seconds of forward and backward compute of one micro batch on one GPU of as many as share
    the experts, and of its optimizer; and half of the 90 % interval of the former's logarithm."""
    run = _run(entry, cluster.device, entry.expert_parallel, micro_batch_size, 1)
    calibrated = read_fused()
    seconds = compute_passes_s(run, calibrated.parameters).sum()
    step = adam_s(run, calibrated.parameters, held_by_gpu(run, _TABLES).all)[0]
    return float(seconds), float(step), float(half_width(run, calibrated)[0])


def predict_open(
    studied: OpenModel, asked: Sequence[Configuration], machine: Machine, parameters: Parameters
) -> Iterator[tuple[Configuration, dict[str, Array]]]:
    """Data parallelism with experts spread over ranks; one rank and one node stand for all."""
    for one in asked:
        yield one, _predicted(studied, one, machine, parameters)


def _run(
    entry: OpenModel, device: Gpu, gpus: int, micro_batch_size: int, micro_batches: int
) -> Run:
    row = {
        "gpu": device.label,
        "gpus": gpus,
        "ep": expert_ranks(entry, gpus),
        "micro_batch": micro_batch_size,
        "global_batch": micro_batch_size * micro_batches * gpus,
        "overlap": "none",
        **shape_columns(entry.shape),
    }
    return read_runs(pd.DataFrame([row]))


def _predicted(
    studied: OpenModel, one: Configuration, machine: Machine, parameters: Parameters
) -> dict[str, Array]:
    gpus, shape, experts = one.gpus, studied.shape, expert_ranks(studied, one.gpus)
    sequences = np.asarray(one.plan.micro_batch_size).item()
    micro_batches = np.asarray(one.plan.global_batch_size).item() // (sequences * gpus)
    run = _run(studied, machine.gpu, gpus, sequences, micro_batches)
    fused = read_fused().parameters
    forward, backward = compute_passes_s(run, fused)[:, 0]
    held = held_by_gpu(run, _TABLES)
    common, own = (FULL_ELEMENT_BYTES * count for count in held_parameters(shape, experts))
    ranks = np.arange(gpus)
    rings = [(common, ranks[:, None])]
    if shape.experts:
        # Every `experts`-th rank has the same ones.
        rings.append((own, ranks.reshape(-1, experts)))
    # What one rank sends to one other in an exchange of one layer and micro batch.
    sent = all_to_all_bytes(shape, sequences, experts, FULL_ELEMENT_BYTES)
    often = micro_batches * shape.layers * _EXCHANGES
    pair = sent / (2 * shape.layers * _EXCHANGES) / max(experts - 1, 1)
    pairs = _all_pairs(ranks.reshape(-1, experts))
    started = float(by_software(run, fused.exchange)[0])
    exchange = (
        often * (parameters.hop_s + message_s(pair, pairs.flows(machine), machine) + started)
        if experts > 1
        else 0.0
    )
    phases = {
        "forward compute": forward,
        "backward compute": backward,
        "forward all-to-all": exchange,
        "backward all-to-all": exchange,
        "straggler wait": fused.straggler_fraction * np.log2(gpus) * (forward + backward),
        "gradient sync": sum(
            topology_s("all_reduce", size, placed(members, machine), parameters)
            for size, members in rings
        ),
        "optimizer": adam_s(run, fused, held.all)[0],
    }
    # A column of draws of the network's parameters, or a single value.
    phases = {name: np.ravel(seconds) for name, seconds in phases.items()}
    time_s = sum(phases.values(), start=np.zeros(1))
    nodes = -(-gpus // machine.gpus_per_node)
    carried = 2 * often * nic_bytes(pairs, pair, machine, nodes)[0]
    for size, members in rings:
        hop = ring_all_reduce_bytes(size, len(members))
        carried = carried + nic_bytes(ring_hops(members), hop, machine, nodes)[0]
    rate = 8e-9 * carried.mean() / time_s[None]
    parts = memory(run, zero=0, widths=WIDTHS["half gradients"])
    return {
        "iteration_time_s": time_s[None],
        "phase_time_s": np.stack(
            [np.broadcast_to(phases.get(name, 0.0), time_s.shape) for name in PHASES]
        )[None],
        "rx_iteration_full_scale_gbps": rate,
        "tx_iteration_full_scale_gbps": rate,
        "memory_bytes": parts.total + FRAMEWORK_BYTES,
    }


def _all_pairs(groups: Array) -> Hops:
    """From each rank of a group (group, rank) to each other one of it."""
    every = [(a, b) for group in groups for a in group for b in group if a != b]
    senders, receivers = np.array(every, dtype=int).reshape(-1, 2).T
    return Hops(senders, receivers)
