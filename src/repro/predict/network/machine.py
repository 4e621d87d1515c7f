"""Machine of the performance model: a GPU, levels of links, and the ranks placed on them."""

from dataclasses import dataclass, replace

import numpy as np

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.protocols import Protocol
from repro.predict.network.links import NetworkCalibration, measured_network
from repro.predict.parameters import Parameters
from repro.predict.workload import Array

_BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True)
class Links:
    """Links of one level of a topology.

    Attributes
    ----------
    vertex_gpus : int
        GPUs below each vertex that has such a link; 1 on the lowest level.
    bytes_per_s : float
        Rate of collectives over one link in each direction, before ring effects.
    latency_s : float
        One-way latency of a small message, in addition to the costs of every collective.
    measured : bool
        Whether the rate was measured on this fabric, so that it contains congestion.
    """

    name: str
    vertex_gpus: int
    bytes_per_s: float
    latency_s: float = 0.0
    measured: bool = False


@dataclass(frozen=True)
class Machine:
    """A GPU and the levels of links between GPUs, lowest first; the last one is the fabric.

    `network` is the fitted curve of collectives measured there, if any. With `ring_sharing`, rings
    with several ranks per node share NICs.
    """

    gpu: Gpu
    levels: tuple[Links, ...]
    ring_sharing: bool = False
    network: NetworkCalibration | None = None

    @property
    def gpus_per_node(self) -> int:
        """GPUs below one vertex of the fabric."""
        return self.levels[-1].vertex_gpus


def machine(cluster: Cluster, parameters: Parameters, protocol: Protocol | None = None) -> Machine:
    """Build the machine of a cluster with a protocol between nodes.

    A protocol's effective rate and latency replace the cluster's measured network, or the fabric's
    nominal rate times `fabric_efficiency`.

    Raises
    ------
    ReproError
        The network that the cluster names was not calibrated.

    Examples
    --------
    >>> from repro.catalog.systems.clusters import cluster
    >>> from repro.catalog.systems.protocols import protocol
    >>> from repro.predict.parameters import calibration
    >>> entry = cluster("pinnacles")
    >>> machine(entry, calibration(entry.calibration).parameters, protocol("ipoib")).gpus_per_node
    2
    """
    network = measured_network(cluster) if protocol is None else None
    levels, vertex_gpus = [], 1
    for level in cluster.topology.levels:
        nominal = level.link_gbps * _BYTES_PER_GBIT
        levels.append(Links(level.name, vertex_gpus, nominal * parameters.collective_efficiency))
        vertex_gpus *= level.members
    if protocol is not None:
        rate, latency_s = protocol.effective_gbps * _BYTES_PER_GBIT, 1e-6 * protocol.latency_us
        fabric = replace(levels[-1], bytes_per_s=rate, latency_s=latency_s, measured=True)
    elif network is not None and (measured := network.fabric_bytes_per_s) is not None:
        fabric = replace(levels[-1], bytes_per_s=measured, measured=True)
    else:
        fabric = replace(levels[-1], bytes_per_s=nominal * parameters.fabric_efficiency)
    return Machine(cluster.device, (*levels[:-1], fabric), cluster.fabric_ring_sharing, network)


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


def placed(members: Array, machine: Machine) -> Placement:
    """Place rings whose members are given by rank (member, ring)."""
    ranks = len(members)
    below = [
        np.array(ranks / len(np.unique(members[:, 0] // level.vertex_gpus)))
        for level in machine.levels
    ]
    flows = ring_hops(members).flows(machine)
    return Placement(machine, np.array(float(ranks)), tuple(below), flows, np.array(True))


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
        flows = []
        for level in machine.levels:
            ends = np.stack([self.senders, self.receivers]) // level.vertex_gpus
            crossing = ends[:, ends[0] != ends[1]]
            counts = [np.bincount(vertices).max(initial=0) for vertices in crossing]
            flows.append(np.asarray(max(counts)))
        return tuple(flows)


def ring_hops(members: Array) -> Hops:
    """List all hops of rings whose members are given (member, ring), each to the next one."""
    return Hops(members.ravel(), np.roll(members, -1, axis=0).ravel())


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


def nic_bytes(
    hops: Hops, size_bytes: Array | float, machine: Machine, nodes: int
) -> tuple[Array, Array]:
    """Sum bytes that each node's NICs send, and receive (node,), when hops carry `size_bytes`."""
    node = machine.gpus_per_node
    senders, receivers = hops.senders // node, hops.receivers // node
    carried = np.where(senders != receivers, size_bytes, 0.0)
    sent = np.bincount(senders, carried, minlength=nodes)
    received = np.bincount(receivers, carried, minlength=nodes)
    return sent, received
