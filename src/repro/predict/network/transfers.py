"""How long collectives and messages take on a machine's links.

Ranks of a group are `stride` apart: 1 for tensor parallelism, the tensor-parallel size for data
parallelism (Megatron's order of ranks). A ring in the order of ranks crosses the link of a vertex
once, whatever number of its ranks is below it, and shares it with the other groups there.
"""

import numpy as np

from repro.predict.network.machine import Machine
from repro.predict.parameters import Parameters
from repro.predict.workload import Array


def ring_bytes_per_s(
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
    beside: Array | None = None,
) -> Array:
    """Bus bandwidth of a ring of `ranks` ranks, `stride` apart, while all such groups are busy:
    `beside` each other; None: as many as there are GPUs between two ranks."""
    span = _span(ranks, stride, beside)
    ramp = ranks / (ranks + parameters.ring_ramp)
    rate = np.full(np.broadcast(ranks, stride).shape, np.inf)
    for number, level in enumerate(machine.levels):
        groups = np.minimum(stride if beside is None else beside, level.vertex_gpus)
        share = level.bytes_per_s / groups
        if level is machine.levels[-1]:
            if not level.measured:
                nodes = ranks / np.maximum(level.vertex_gpus / stride, 1)
                share = share * congestion(nodes, parameters)
            if machine.ring_sharing:
                # Of as many parts it gets one GPU's, and each of its ranks there crosses that.
                members = np.clip(level.vertex_gpus / stride, 1, ranks)
                share = share * np.where(stride > 1, members**-2.0, 1.0)
        else:
            share = share * ramp
        crossed = (ranks > 1) & ((number == 0) | (span > level.vertex_gpus))
        rate = np.minimum(rate, np.where(crossed, share, np.inf))
    return rate


def congestion(nodes: Array | float, parameters: Parameters) -> Array:
    """What rings over so many nodes get of what two nodes, whose ports meet nobody else's, do."""
    part: Array = np.maximum(nodes / 2, 1) ** -parameters.congestion_exponent
    return part


def _span(ranks: Array, stride: Array, beside: Array | None) -> Array:
    """GPUs from the first to the last of groups that are beside each other."""
    span: Array = ranks * stride if beside is None else (ranks - 1) * stride + beside
    return span


def ring_latency_s(
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
    beside: Array | None = None,
) -> Array:
    """What a collective costs beside its transfer; `placed_ring_latency_s` says how."""
    per_node = np.maximum(machine.gpus_per_node / stride, 1)
    if beside is not None:
        within = _span(ranks, stride, beside) <= machine.gpus_per_node
        per_node = np.where(within, ranks, per_node)
    inside = np.minimum(ranks, per_node)
    nodes = np.maximum(ranks / per_node, 1)
    latency = placed_ring_latency_s(inside, nodes, machine, parameters)
    return np.where(ranks > 1, latency, 0.0)


def placed_ring_latency_s(
    ranks_per_node: Array, nodes: Array, machine: Machine, parameters: Parameters
) -> Array:
    """What a collective of so many ranks of each of so many nodes costs beside its transfer.

    Ranks of one node: latency x n^exponent. Each further doubling of nodes adds two messages over
    the fabric (up and down a tree).
    """
    inside = np.maximum(ranks_per_node, 2) ** parameters.latency_exponent
    across = 2 * machine.levels[-1].latency_s * np.log2(nodes)
    latency: Array = parameters.collective_latency_s * inside + across
    return latency


def all_reduce_s(
    size_bytes: Array,
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
    beside: Array | None = None,
) -> Array:
    """Ring all-reduce of S bytes: 2 (n-1)/n S over the bus bandwidth, and latency."""
    return half_all_reduce_s(2 * size_bytes, ranks, stride, machine, parameters, beside)


def half_all_reduce_s(
    size_bytes: Array,
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
    beside: Array | None = None,
) -> Array:
    """Ring reduce-scatter or all-gather of S bytes in all: (n-1)/n S over the bus bandwidth."""
    moved = (ranks - 1) / ranks * size_bytes
    transfer = moved / ring_bytes_per_s(ranks, stride, machine, parameters, beside)
    return transfer + ring_latency_s(ranks, stride, machine, parameters, beside)


def data_parallel_s(
    collective: str,
    size_bytes: Array,
    ranks: Array,
    stride: Array,
    machine: Machine,
    parameters: Parameters,
) -> Array:
    """An all_reduce, reduce_scatter or all_gather of data-parallel ranks, which fill nodes.

    A ring; at ranks on nodes that the machine's network was measured at, what it was measured to
    take. That was one group alone, so groups that share nodes (a `stride` above 1) are rings.
    """
    ring = all_reduce_s if collective == "all_reduce" else half_all_reduce_s
    generic = ring(size_bytes, ranks, stride, machine, parameters)
    if machine.network is None:
        return generic
    nodes = np.ceil(ranks / machine.gpus_per_node)
    error = np.asarray(parameters.network_error)
    measured = machine.network.time_s(collective, size_bytes, ranks, nodes, error)
    return np.where((stride == 1) & ~np.isnan(measured), measured, generic)


def message_s(size_bytes: Array, stride: Array, ranks: Array, machine: Machine) -> Array:
    """One message to the rank `stride` further, while each of so many ranks but the last `stride`
    sends one like it: the slowest of them."""
    rate = np.full(np.shape(stride), np.inf)
    latency = np.zeros(np.shape(stride))
    for number, level in enumerate(machine.levels):
        crossed = (number == 0) | (ranks > level.vertex_gpus)
        # So many of a vertex send to another one.
        share = level.bytes_per_s / np.minimum(level.vertex_gpus, np.maximum(stride, 1))
        rate = np.where(crossed, np.minimum(rate, share), rate)
        latency = np.where(crossed, latency + level.latency_s, latency)
    time: Array = size_bytes / rate + latency
    return time
