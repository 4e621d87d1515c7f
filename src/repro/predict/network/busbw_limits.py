"""Bus bandwidth that the links of a cluster allow a collective, by level of the topology."""

from dataclasses import dataclass

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.protocols import Protocol
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.predict.network.links import FABRIC_EFFICIENCY, NODE_EFFICIENCY, link_factor


@dataclass(frozen=True)
class Group:
    """Ranks of a collective, spread evenly over nodes."""

    collective: str
    ranks: int
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the node with the most."""
        return -(-self.ranks // self.nodes)


def group_on(cluster: Cluster, collective: str, ranks: int, nodes: int | None) -> Group:
    """Place ranks on a cluster's nodes; without `nodes` they fill one after another.

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
    """Bus bandwidth in GB/s that one level's link allows a group.

    Attributes
    ----------
    link
        The level, and its nominal rate.
    crossed
        Whether messages of the group leave vertices of the level.
    typical_GBps
        At the fraction of the nominal rate that collectives usually reach.
    ceiling_GBps
        At the nominal rate, by algorithms that send as much over the link as a ring does.
    most_GBps
        At the nominal rate, by any algorithm.
    """

    link: str
    crossed: bool
    typical_GBps: float
    ceiling_GBps: float
    most_GBps: float


def limits(cluster: Cluster, group: Group, protocol: Protocol | None) -> list[Limit]:
    """List what every level allows, lowest first; a protocol's effective rate is the fabric's."""
    found = []
    vertex, vertex_gpus = "GPU", 1
    top = cluster.topology.levels[-1]
    for level in cluster.topology.levels:
        nominal = level.link_gbps / 8
        if level is not top:
            typical = NODE_EFFICIENCY.median * nominal
        elif protocol is None:
            typical = FABRIC_EFFICIENCY.median * nominal
        else:
            typical = protocol.effective_gbps / 8
        below = min(vertex_gpus, group.ranks_per_node)
        lower = vertex_gpus == 1 or group.ranks_per_node > vertex_gpus
        sent = float(link_factor(group.collective, group.ranks, below))
        crowding = sent / float(bus_factor(group.collective, group.ranks))
        found.append(
            Limit(
                link=f"{level.name}: {level.link_gbps:g} Gbit/s per {vertex}",
                crossed=group.nodes > 1 if level is top else lower,
                typical_GBps=typical / crowding,
                ceiling_GBps=nominal / crowding,
                most_GBps=nominal / crowding * (sent / _least_factor(group, below)),
            )
        )
        vertex, vertex_gpus = level.name, vertex_gpus * level.members
    return found


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
