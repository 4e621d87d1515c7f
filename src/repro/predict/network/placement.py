"""What messages and rings get of a machine's links, by where their ranks are: ranks fill nodes in
order.

`repro.predict.network.transfers` has closed forms for groups that fill nodes evenly; pipelines send
between any two ranks.
"""

from dataclasses import dataclass

import numpy as np

from repro.predict.network.machine import Machine
from repro.predict.network.transfers import congestion, placed_ring_latency_s
from repro.predict.parameters import Parameters
from repro.predict.workload import Array


@dataclass(frozen=True)
class Hops:
    """Ranks that send at the same time, and the ranks that they send to (hop)."""

    senders: Array
    receivers: Array

    def backward(self) -> "Hops":
        """The same hops the other way."""
        return Hops(self.receivers, self.senders)


def ring_hops(members: Array) -> Hops:
    """All hops of rings whose members are given (member, ring), each to the next."""
    return Hops(members.ravel(), np.roll(members, -1, axis=0).ravel())


def placed_message_s(
    size_bytes: Array | float, hops: Hops, machine: Machine, parameters: Parameters
) -> Array:
    """One message over each hop at the same time: the slowest of them.

    Hops that leave or enter one vertex share its link, full duplex.
    """
    rate: Array = np.array(np.inf)
    latency: Array = np.zeros(())
    for level in machine.levels:
        if flows := _most_flows(hops, level.vertex_gpus):
            rate = np.minimum(rate, level.bytes_per_s / flows)
            latency = latency + level.latency_s
    return parameters.hop_s + size_bytes / rate + latency


def placed_all_reduce_s(
    size_bytes: Array | float, members: Array, machine: Machine, parameters: Parameters
) -> Array:
    """Ring all-reduces of S bytes at the same time: 2 (n-1)/n S over the slowest hop, and latency.

    Parameters
    ----------
    members
        Ranks (member, ring); no time passes where a ring has one member.
    """
    ranks = len(members)
    if ranks == 1:
        return np.zeros(())
    hops = ring_hops(members)
    nodes = len(np.unique(members[:, 0] // machine.gpus_per_node))
    rate: Array = np.array(np.inf)
    for level in machine.levels:
        if flows := _most_flows(hops, level.vertex_gpus):
            share: Array | float = level.bytes_per_s / flows
            # As for rings that fill nodes (`ring_bytes_per_s`).
            if level is not machine.levels[-1]:
                share = share * ranks / (ranks + parameters.ring_ramp)
            elif not level.measured:
                share = share * congestion(nodes, parameters)
            rate = np.minimum(rate, share)
    latency = placed_ring_latency_s(np.array(ranks / nodes), np.array(nodes), machine, parameters)
    return 2 * (ranks - 1) / ranks * size_bytes / rate + latency


def nic_bytes(
    hops: Hops, size_bytes: Array | float, machine: Machine, nodes: int
) -> tuple[Array, Array]:
    """What the NICs of so many nodes send and receive when each hop carries so many bytes.

    Returns
    -------
    tuple of Array
        Bytes sent and bytes received (node,); hops within a node count for nothing.
    """
    node = machine.gpus_per_node
    senders, receivers = hops.senders // node, hops.receivers // node
    carried = np.where(senders != receivers, size_bytes, 0.0)
    sent = np.bincount(senders, carried, minlength=nodes)
    received = np.bincount(receivers, carried, minlength=nodes)
    return sent, received


def _most_flows(hops: Hops, vertex_gpus: int) -> int:
    """Hops that leave, or enter, the busiest vertex of so many GPUs; 0 if none leaves its own."""
    senders, receivers = hops.senders // vertex_gpus, hops.receivers // vertex_gpus
    crossing = senders != receivers
    if not crossing.any():
        return 0
    return int(max(np.bincount(ends[crossing]).max() for ends in (senders, receivers)))
