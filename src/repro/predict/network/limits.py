"""Bus bandwidth that links allow a collective, by the mechanisms that libraries use.

Ring: a message enters and leaves each vertex of a level once. Where each GPU has its own NIC, rings
are rail-optimised: a node's ranks send through as many NICs, and no rank uses more than its NIC and
its PCIe link carry. Tree: two nodes exchange their sums, so an all-reduce crosses the NICs once
instead of 2 (n-1)/n times. NVLS: NVSwitch adds up, so each of n GPUs sends (n+1)/n of the size
instead of 2 (n-1)/n.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.collectives.definitions import bus_factor, busbw_GBps
from repro.errors import ReproError
from repro.predict.network.links import link_factor
from repro.predict.workload import Array


class Reached(NamedTuple):
    """Fraction of a nominal rate that healthy collectives usually reach.

    90 % of clusters are between `usual` / e^`half_width` and `usual` e^`half_width`.
    """

    usual: float
    half_width: float


# Rings of 16 to 64 GPUs with a NIC of 400 Gbit/s each reach 0.87 to 0.92, Slingshot 0.77 to 0.93,
# AWS EFA of 2020 with four NICs 0.60 to 0.72. On two nodes a library uses rings or trees.
_FABRIC, _TWO_NODES = Reached(0.85, 0.35), Reached(0.85, 0.36)
# Each GPU sends to all others, and messages are n times smaller.
_ALL_TO_ALL = Reached(0.7, 0.5)
# GPUs behind a switch; all GPUs of a mesh; some GPUs of a mesh, or cards that share a PCIe bus.
_SWITCH, _MESH, _PART_OF_MESH = Reached(0.8, 0.28), Reached(0.8, 0.4), Reached(0.8, 1.5)
# GB/s in each direction of a GPU's PCIe link (x16), by generation: Gen3, Gen4, Gen5.
_PCIE_GBPS = {"volta": 15.75, "ampere": 31.5, "ada": 31.5, "cdna2": 31.5}
_PCIE_GEN5_GBPS = 63.0
_MESHES = ("volta", "cdna2", "cdna3", "cdna4")
_NVLS = ("hopper", "blackwell")
# Slower links are a PCIe bus, not links between GPUs.
_SLOWEST_LINK_GBPS = 64.0


@dataclass(frozen=True)
class Group:
    """Ranks of a collective, spread evenly over nodes of a cluster.

    `protocol` is the one between nodes; None: the cluster's own network.
    """

    cluster: Cluster
    protocol: Protocol | None
    collective: str
    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the node with the most."""
        return -(-self.ranks // self.nodes)

    @property
    def senders(self) -> int:
        """GPUs of a node that send to other nodes: one of a chain of messages, all of a ring."""
        return 1 if self.collective == "send_recv" else self.ranks_per_node

    @property
    def nic_GBps(self) -> float:
        """Rate of one NIC."""
        return self.cluster.one_nic_gbps / 8

    @property
    def node_GBps(self) -> float:
        """Rate of all NICs of a node."""
        return self.cluster.topology.levels[-1].link_gbps / 8

    @property
    def fabric_GBps(self) -> float:
        """Rate of the NICs that its ranks on one node can use."""
        each = max(self.nic_GBps, self.node_GBps / self.cluster.topology.gpus_per_node)
        return min(self.node_GBps, self.senders * min(each, pcie_GBps(self.cluster)))

    def busbw_GBps(self, sizes: Array, seconds: Array) -> Array:
        """Convert times of the collective to bus bandwidths."""
        return busbw_GBps(self.collective, self.ranks, sizes, seconds)


def pcie_GBps(cluster: Cluster) -> float:
    """Return the rate of a GPU's PCIe link, which its maker's NICs do not exceed."""
    device = cluster.device
    return max(_PCIE_GBPS.get(device.generation, _PCIE_GEN5_GBPS), device.nic_gbps / 8)


def group_on(
    cluster: Cluster,
    collective: str,
    ranks: int,
    nodes: int | None = None,
    protocol: str | None = None,
) -> Group:
    """Place ranks on nodes like a cluster's; without `nodes` they fill one after another.

    The cluster's number of nodes is no limit.

    Raises
    ------
    ReproError
        A name is unknown, there are too few ranks, or the ranks do not fit on the nodes.
    """
    if protocol is not None and not cluster.protocols:
        raise ReproError(f"protocol {protocol!r}: {cluster.label} has no protocols; leave it out")
    known = {name: read_protocols()[name] for name in cluster.protocols}
    transport = None if protocol is None else choose("protocol", protocol, known)
    bus_factor(collective, 2)
    if ranks < 2:
        raise ReproError(f"ranks {ranks}: 1 rank exchanges nothing; fix: give 2 or more")
    fewest = -(-ranks // cluster.topology.gpus_per_node)
    if nodes is not None and not fewest <= nodes <= ranks:
        raise ReproError(
            f"nodes {nodes}: {ranks} ranks take {fewest} to {ranks} nodes of {cluster.label}"
        )
    return Group(cluster, transport, collective, ranks, nodes or fewest)


@dataclass(frozen=True)
class Limit:
    """Bus bandwidth in GB/s that one level's link allows a group.

    `typical_GBps` is at the fraction of the nominal rate that collectives usually reach, with its
    90 % half width. At the nominal rate, `ring_GBps` is a ring's, `ceiling_GBps` that of the best
    algorithm of NCCL, and `most_GBps` has the least traffic of any algorithm. `crossed` is whether
    messages of the group leave vertices of the level.
    """

    link: str
    crossed: bool
    typical_GBps: float
    half_width: float
    ring_GBps: float
    ceiling_GBps: float
    most_GBps: float


def limits(group: Group) -> list[Limit]:
    """List what every level allows, lowest first; a protocol's effective rate is the fabric's."""
    found = []
    vertex, vertex_gpus = "GPU", 1
    levels = group.cluster.topology.levels
    for level in levels:
        top = level is levels[-1]
        below = min(vertex_gpus, group.ranks_per_node)
        sent = float(link_factor(group.collective, group.ranks, below))
        crowding = sent / float(bus_factor(group.collective, group.ranks))
        nominal = group.fabric_GBps if top else level.link_gbps / 8
        gain = _tree_gain(group) if top else _nvls_gain(group, vertex_gpus, level.link_gbps / 8)
        reached = _on_fabric(group) if top else _in_node(group, level.link_gbps / 8)
        typical = reached.usual * nominal * np.sqrt(gain)
        if top and group.protocol is not None:
            typical = group.protocol.effective_gbps / 8
        ring = nominal / crowding
        found.append(
            Limit(
                link=f"{level.name}: {level.link_gbps:g} Gbit/s per {vertex}"
                + _fewer_nics(group, top=top),
                crossed=group.nodes > 1
                if top
                else vertex_gpus == 1 or group.ranks_per_node > vertex_gpus,
                typical_GBps=float(typical / crowding),
                half_width=reached.half_width,
                ring_GBps=ring,
                ceiling_GBps=ring * gain,
                most_GBps=max(ring * gain, ring * (sent / _least_factor(group, below))),
            )
        )
        vertex, vertex_gpus = level.name, vertex_gpus * level.members
    return found


def lowest_limit(group: Group) -> Limit:
    """Return the limit of the crossed level with the lowest rate."""
    crossed = [limit for limit in limits(group) if limit.crossed]
    return min(crossed, key=lambda limit: limit.typical_GBps)


def _fewer_nics(group: Group, *, top: bool) -> str:
    """Name the rate that ranks of a node can use, if it is not that of all its NICs."""
    if not top or group.fabric_GBps == group.node_GBps:
        return ""
    return f", of which {group.senders} GPU{'s' * (group.senders > 1)} can use " + (
        f"{8 * group.fabric_GBps:g}"
    )


def _tree_gain(group: Group) -> float:
    """Return how much less than a ring a tree over two nodes sends through the NICs."""
    if group.collective != "all_reduce" or group.nodes != 2:
        return 1.0
    return max(1.0, 2 * (group.ranks - 1) / group.ranks)


def _nvls_gain(group: Group, vertex_gpus: int, rate_GBps: float) -> float:
    """Return how much less than a ring an all-reduce sends whose sums are computed by NVSwitch."""
    n = group.ranks_per_node
    switched = rate_GBps > _SLOWEST_LINK_GBPS and vertex_gpus == 1
    if group.collective != "all_reduce" or not switched:
        return 1.0
    if group.cluster.device.generation not in _NVLS:
        return 1.0
    return max(1.0, 2 * (n - 1) / (n + 1))


def _on_fabric(group: Group) -> Reached:
    if group.collective == "all_to_all":
        return _ALL_TO_ALL
    return _TWO_NODES if _tree_gain(group) > 1 else _FABRIC


def _in_node(group: Group, rate_GBps: float) -> Reached:
    if rate_GBps <= _SLOWEST_LINK_GBPS:
        return _PART_OF_MESH
    if group.cluster.device.generation not in _MESHES:
        return _SWITCH
    complete = group.ranks_per_node == group.cluster.topology.gpus_per_node
    return _MESH if complete else _PART_OF_MESH


def _least_factor(group: Group, below: int) -> float:
    """Return the `link_factor` of the algorithm that sends least.

    An all-reduce has to send each vertex's sum and receive the total, once each where switches add
    up (SHARP) or two vertices exchange sums. An all-gather has to receive what ranks of other
    vertices have, a reduce-scatter to send what they get.
    """
    if group.collective == "all_reduce":
        return 1.0
    if group.collective in ("all_gather", "reduce_scatter") and below < group.ranks:
        return (group.ranks - below) / group.ranks
    return float(link_factor(group.collective, group.ranks, below))
