"""Ranks of communicating groups on a machine's topology, and how many share each link."""

from dataclasses import dataclass

import numpy as np

from repro.predict.network.machine import Machine
from repro.predict.workload import Array

# Transfers that share the busiest link of each level, lowest level first; 0 where none crosses it.
Flows = tuple[Array, ...]


@dataclass(frozen=True)
class Placement:
    """Equal groups of ranks on a machine that run one collective each at the same time.

    Attributes
    ----------
    ranks
        Ranks of one group.
    below
        Ranks of one group below one vertex of each level, lowest level first.
    flows
        Rings that share the busiest link of each level.
    alone
        Whether no other group has ranks between those of one group.
    """

    machine: Machine
    ranks: Array
    below: tuple[Array, ...]
    flows: Flows
    alone: Array

    @property
    def nodes(self) -> Array:
        """Nodes of one group."""
        count: Array = self.ranks / self.below[-1]
        return count


def strided(
    ranks: Array, stride: Array, machine: Machine, beside: Array | None = None
) -> Placement:
    """Place groups whose ranks are `stride` apart, with a group in each of the gaps.

    Megatron's order of ranks has a stride of 1 in tensor parallelism, and of the tensor-parallel
    size in data parallelism. A ring in the order of ranks crosses the link of a vertex once.

    Parameters
    ----------
    beside
        Groups that communicate at the same time. Default: `stride`, one per gap.
    """
    groups = stride if beside is None else beside
    span = (ranks - 1) * stride + groups
    below, flows = [], []
    for level in machine.levels:
        inside = np.clip(level.vertex_gpus / stride, 1, ranks)
        below.append(np.where(span <= level.vertex_gpus, ranks, inside))
        crossed = (ranks > 1) & (span > level.vertex_gpus)
        flows.append(np.where(crossed, np.minimum(groups, level.vertex_gpus), 0.0))
    return Placement(machine, ranks, tuple(below), tuple(flows), stride == 1)


@dataclass(frozen=True)
class Hops:
    """Ranks that send at the same time, and the ranks that they send to (hop,)."""

    senders: Array
    receivers: Array

    def backward(self) -> "Hops":
        """Return the same hops in the other direction."""
        return Hops(self.receivers, self.senders)

    def flows(self, machine: Machine) -> Flows:
        """Count hops that leave, or enter, the busiest vertex of each level."""
        return tuple(self._most_flows(level.vertex_gpus) for level in machine.levels)

    def _most_flows(self, vertex_gpus: int) -> Array:
        senders, receivers = self.senders // vertex_gpus, self.receivers // vertex_gpus
        crossing = senders != receivers
        if not crossing.any():
            return np.zeros(())
        busiest = [np.bincount(ends[crossing]).max() for ends in (senders, receivers)]
        return np.asarray(np.max(busiest))


def neighbour_flows(stride: Array, ranks: Array, machine: Machine) -> Flows:
    """Count messages per link when each of `ranks` ranks sends to the rank `stride` further.

    The last `stride` ranks send nothing.
    """
    flows = []
    for number, level in enumerate(machine.levels):
        crossed = (number == 0) | (ranks > level.vertex_gpus)
        senders = np.minimum(level.vertex_gpus, np.maximum(stride, 1))
        flows.append(np.where(crossed, senders, 0.0))
    return tuple(flows)


def ring_hops(members: Array) -> Hops:
    """List all hops of rings whose members are given (member, ring), each to the next one."""
    return Hops(members.ravel(), np.roll(members, -1, axis=0).ravel())


def placed(members: Array, machine: Machine) -> Placement:
    """Place rings whose members are given by rank (member, ring)."""
    ranks = len(members)
    below = [
        np.array(ranks / len(np.unique(members[:, 0] // level.vertex_gpus)))
        for level in machine.levels
    ]
    flows = ring_hops(members).flows(machine)
    return Placement(machine, np.array(float(ranks)), tuple(below), flows, np.array(True))


def nic_bytes(
    hops: Hops, size_bytes: Array | float, machine: Machine, nodes: int
) -> tuple[Array, Array]:
    """Sum bytes through each node's NICs when every hop carries `size_bytes`.

    Returns
    -------
    tuple of Array
        Bytes sent and bytes received (node,). Hops within a node add nothing.
    """
    node = machine.gpus_per_node
    senders, receivers = hops.senders // node, hops.receivers // node
    carried = np.where(senders != receivers, size_bytes, 0.0)
    sent = np.bincount(senders, carried, minlength=nodes)
    received = np.bincount(receivers, carried, minlength=nodes)
    return sent, received
