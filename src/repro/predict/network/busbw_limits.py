"""The links that a collective crosses on a cluster, and the bus bandwidth each of them allows."""

from dataclasses import dataclass

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.protocols import Protocol
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.predict.network.links import FABRIC_EFFICIENCY, NODE_EFFICIENCY


@dataclass(frozen=True)
class Group:
    """A collective's ranks, spread evenly over nodes."""

    collective: str
    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """On the fullest node."""
        return -(-self.ranks // self.nodes)


def group_on(cluster: Cluster, collective: str, ranks: int, nodes: int | None) -> Group:
    """A group that the cluster has room for; without `nodes`, ranks fill one after another.

    Raises
    ------
    ReproError
        The collective is unknown, or there are too many or too few ranks or nodes.
    """
    bus_factor(collective, 2)
    topology = cluster.topology
    if not 2 <= ranks <= topology.gpus:
        raise ReproError(
            f"ranks {ranks}: {cluster.label} has {topology.gpus} GPUs; "
            f"take a whole number from 2 to {topology.gpus}"
        )
    fewest = -(-ranks // topology.gpus_per_node)
    most = min(ranks, topology.nodes)
    if nodes is not None and not fewest <= nodes <= most:
        raise ReproError(
            f"nodes {nodes}: {ranks} ranks take {fewest} to {most} nodes of {cluster.label}"
        )
    return Group(collective, ranks, nodes or fewest)


@dataclass(frozen=True)
class Limit:
    """One level's link and what it lets a group have; bus bandwidth in GB/s.

    Attributes
    ----------
    link
        The level, and its nominal rate.
    crossed
        Whether messages of the group leave vertices of the level.
    typical_GBps
        Of the rate that collectives usually get.
    ceiling_GBps
        Of the nominal rate, by algorithms that send as much over the link as a ring does.
    most_GBps
        Of the nominal rate, by any algorithm.
    """

    link: str
    crossed: bool
    typical_GBps: float
    ceiling_GBps: float
    most_GBps: float


def limits(cluster: Cluster, group: Group, protocol: Protocol | None) -> list[Limit]:
    """What every level allows, lowest first; a protocol's effective rate is the fabric's."""
    found = []
    below, vertex_gpus = "GPU", 1
    top = cluster.topology.levels[-1]
    for level in cluster.topology.levels:
        nominal = level.link_gbps / 8
        if level is not top:
            typical = NODE_EFFICIENCY.median * nominal
        elif protocol is None:
            typical = FABRIC_EFFICIENCY.median * nominal
        else:
            typical = protocol.effective_gbps / 8
        inside = min(vertex_gpus, group.ranks_per_node)
        lower = vertex_gpus == 1 or group.ranks_per_node > vertex_gpus
        crowding = _sent(group, inside) / float(bus_factor(group.collective, group.ranks))
        spare = _sent(group, inside) / _least_sent(group, inside)
        found.append(
            Limit(
                link=f"{level.name}: {level.link_gbps:g} Gbit/s per {below}",
                crossed=group.nodes > 1 if level is top else lower,
                typical_GBps=typical / crowding,
                ceiling_GBps=nominal / crowding,
                most_GBps=nominal / crowding * spare,
            )
        )
        below, vertex_gpus = level.name, vertex_gpus * level.members
    return found


def _sent(group: Group, inside: int) -> float:
    """What crosses a vertex's link with so many ranks below it, over the collective's size.

    A ring enters and leaves a vertex once, whatever is below it. In an all-to-all each rank sends
    to each outside.
    """
    n = group.ranks
    if group.collective == "all_to_all" and inside < n:
        return inside * (n - inside) / n
    return float(bus_factor(group.collective, n))


def _least_sent(group: Group, inside: int) -> float:
    """The same of the algorithm that sends least.

    An all-reduce has to send each vertex's sum and receive that of all, once each where the network
    adds up (NVLink SHARP, InfiniBand SHARP) and where two vertices exchange theirs. An all-gather
    has to receive what other vertices' ranks have, a reduce-scatter to send what they get.
    """
    if group.collective == "all_reduce":
        return 1.0
    if group.collective in ("all_gather", "reduce_scatter") and inside < group.ranks:
        return (group.ranks - inside) / group.ranks
    return _sent(group, inside)
