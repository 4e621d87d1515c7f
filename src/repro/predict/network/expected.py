"""Bus bandwidth to expect of collectives on a cluster, and a verdict on measured ones.

Where the cluster names a measured network, its fitted curve (`repro.predict.network.links`) gives
the prediction. Elsewhere the links' nominal rates do, with the intervals of unknown networks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster, cluster
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.collectives.definitions import bus_factor, busbw_GBps
from repro.errors import ReproError
from repro.predict.network.links import (
    FABRIC_EFFICIENCY,
    NEW_NETWORK,
    NODE_EFFICIENCY,
    RegimeTimes,
    collective_arrays,
    link_factor,
    measured_network,
    read_links,
    regime_times,
    steps,
    usual_costs,
)
from repro.predict.workload import Array

AS_EXPECTED, SLOW, FAST = "as expected", "slow", "fast"
_REGIMES = ("latency", "start-up", "transfer")

# Columns with one value per block of a printed table, and the others.
_HEAD = ["collective", "ranks", "nodes", "ceiling_GBps", "basis"]
_BODY = ["size", "in_place", "busbw_GBps", "low_GBps", "typical_GBps", "high_GBps", "verdict"]
_BODY += ["regime", "limit", "remark"]


def expected_busbw(
    cluster_name: str,
    collective: str,
    size_bytes: ArrayLike,
    ranks: int,
    protocol: str | None = None,
    nodes: int | None = None,
) -> pd.DataFrame:
    """Predict the bus bandwidth of a collective by size.

    Parameters
    ----------
    cluster_name : str
        A name in `params/clusters.yaml`.
    size_bytes : array-like
        Sizes by nccl-tests' definition, as everywhere in `repro.collectives`.
    protocol : str, optional
        Protocol of the cluster between nodes. Default: the cluster's measured network, or its
        fabric's nominal rate.
    nodes : int, optional
        Nodes that the ranks are spread over. Default: ranks fill one node after another.

    Returns
    -------
    DataFrame
        A row per size: collective, ranks, nodes, size_bytes; low_GBps, typical_GBps and high_GBps,
        the 90 % interval of the bus bandwidth (1e9 B/s) and its middle; regime, which takes most
        of the time; limit, the link that limits the transfer with its nominal rate, or that no
        link does; ceiling_GBps, the bus bandwidth of a ring at that link's nominal rate; basis,
        the source of the numbers.

    Raises
    ------
    ReproError
        A name is unknown, or the cluster has too few GPUs or nodes.

    Examples
    --------
    >>> expected = expected_busbw("pinnacles", "all_reduce", [2**20, 2**30], 8, "rdma")
    >>> expected.limit.tolist()
    ['fabric: 100 Gbit/s per node', 'fabric: 100 Gbit/s per node']
    """
    group = group_on(cluster(cluster_name), collective, ranks, nodes, protocol)
    return _expect(group, np.atleast_1d(np.asarray(size_bytes, dtype=float)))


def judge_busbw(
    measured: pd.DataFrame, cluster_name: str, protocol: str | None = None
) -> pd.DataFrame:
    """Compare measured collectives with their expected bus bandwidth.

    Parameters
    ----------
    measured : DataFrame
        Rows as `repro.logs.reading.read_log` reads them. Bus bandwidths are computed from times;
        without `nodes`, ranks fill one after another.
    cluster_name, protocol
        As in `expected_busbw`.

    Returns
    -------
    DataFrame
        By the index of `measured`: the columns of `expected_busbw`; the measured busbw_GBps;
        verdict, one of `AS_EXPECTED`, `SLOW` (below the interval) and `FAST` (above it); and
        remark, by which factor, and which link or protocol would explain it.

    Raises
    ------
    ReproError
        A name is unknown, or the cluster has too few GPUs or nodes.
    """
    entry = cluster(cluster_name)
    groups = measured.reset_index(drop=True).groupby(["collective", "ranks", "nodes"], dropna=False)
    parts = []
    for key, rows in groups:
        name, ranks, nodes = cast(tuple[str, int, float], key)
        on = None if pd.isna(nodes) else int(nodes)
        parts.append(_judge(group_on(entry, name, int(ranks), on, protocol), rows))
    return pd.concat(parts).sort_index().set_axis(measured.index)


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

    def busbw_GBps(self, sizes: Array, seconds: Array) -> Array:
        """Convert times of the collective to bus bandwidths."""
        return busbw_GBps(self.collective, self.ranks, sizes, seconds)


def group_on(
    cluster: Cluster,
    collective: str,
    ranks: int,
    nodes: int | None = None,
    protocol: str | None = None,
) -> Group:
    """Place ranks on a cluster's nodes; without `nodes` they fill one after another.

    Raises
    ------
    ReproError
        A name is unknown, or there are too many or too few ranks or nodes.
    """
    if protocol is not None and not cluster.protocols:
        raise ReproError(f"protocol {protocol!r}: {cluster.label} has no protocols; leave it out")
    known = {name: read_protocols()[name] for name in cluster.protocols}
    transport = None if protocol is None else choose("protocol", protocol, known)
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
    return Group(cluster, transport, collective, ranks, nodes or fewest)


@dataclass(frozen=True)
class Limit:
    """Bus bandwidth in GB/s that one level's link allows a group.

    `typical_GBps` is at the fraction of the nominal rate that collectives usually reach,
    `ceiling_GBps` at the nominal rate with a ring's traffic, `most_GBps` with the least traffic of
    any algorithm. `crossed` is whether messages of the group leave vertices of the level.
    """

    link: str
    crossed: bool
    typical_GBps: float
    ceiling_GBps: float
    most_GBps: float


def limits(group: Group) -> list[Limit]:
    """List what every level allows, lowest first; a protocol's effective rate is the fabric's."""
    found = []
    vertex, vertex_gpus = "GPU", 1
    levels = group.cluster.topology.levels
    for level in levels:
        nominal = level.link_gbps / 8
        if level is not levels[-1]:
            crossed = vertex_gpus == 1 or group.ranks_per_node > vertex_gpus
            typical = NODE_EFFICIENCY.median * nominal
        else:
            crossed = group.nodes > 1
            typical = FABRIC_EFFICIENCY.median * nominal
            if group.protocol is not None:
                typical = group.protocol.effective_gbps / 8
        below = min(vertex_gpus, group.ranks_per_node)
        sent = float(link_factor(group.collective, group.ranks, below))
        crowding = sent / float(bus_factor(group.collective, group.ranks))
        found.append(
            Limit(
                link=f"{level.name}: {level.link_gbps:g} Gbit/s per {vertex}",
                crossed=crossed,
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


def _lowest_limit(group: Group) -> Limit:
    """Return the limit of the crossed level with the lowest rate."""
    crossed = [limit for limit in limits(group) if limit.crossed]
    return min(crossed, key=lambda limit: limit.typical_GBps)


def _expect(group: Group, sizes: Array) -> pd.DataFrame:
    """Return the table of `expected_busbw`."""
    limit = _lowest_limit(group)
    names = {name: getattr(group, name) for name in ("collective", "ranks", "nodes")}
    rows = pd.DataFrame({**names, "size_bytes": sizes})
    network = measured_network(group.cluster) if group.protocol is None else None
    # A network that was measured on one node says nothing of several, nor the reverse.
    if network and any((peak.nodes == 1) == (group.nodes == 1) for peak in network.peaks):
        chosen = collective_arrays(rows)
        times = network.times(chosen)
        half_width: Array | float = network.half_widths(chosen, times)
        basis = f"collectives of {network.gpu}, {network.network}"
    else:
        times = _link_times(group, limit, sizes)
        half_width = read_links().residuals[NEW_NETWORK].half_width
        basis = "link rates"
    typical, width = group.busbw_GBps(sizes, times.time_s), np.exp(half_width)
    # A link's nominal rate bounds the interval, but for higher measured ones.
    ceiling = np.maximum(limit.ceiling_GBps, typical)
    seconds = np.stack(np.broadcast_arrays(times.latency, times.startup, times.transfer))
    regime = np.array(_REGIMES)[seconds.argmax(axis=0)]
    return rows.assign(
        low_GBps=typical / width,
        typical_GBps=typical,
        high_GBps=np.minimum(typical * width, ceiling),
        regime=regime,
        limit=[limit.link if name == _REGIMES[2] else f"{name}, not a link" for name in regime],
        ceiling_GBps=limit.ceiling_GBps,
        basis=basis,
    )


def _link_times(group: Group, limit: Limit, sizes: Array) -> RegimeTimes:
    """Predict times from a link's rate, with the usual costs of networks without measurements."""
    costs = usual_costs(group.nodes)
    if group.protocol is not None and group.nodes > 1:
        # A dependent message takes at least the protocol's latency.
        hop_s = max(costs.hop_s, group.protocol.latency_us * 1e-6)
        costs = costs.model_copy(update={"hop_s": hop_s})
    collective, ranks = group.collective, group.ranks
    link_bytes = link_factor(collective, ranks, ranks / group.nodes) * sizes
    transfer_s = bus_factor(collective, ranks) * sizes / (1e9 * limit.typical_GBps)
    return regime_times(link_bytes, steps(collective, ranks), transfer_s, costs)


def _judge(group: Group, measured: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `judge_busbw` for one group."""
    sizes, time_us = (measured[name].to_numpy(dtype=float) for name in ("size_bytes", "time_us"))
    found = group.busbw_GBps(sizes, time_us * 1e-6)
    expected = _expect(group, sizes)
    others = list(_alternatives(group, sizes))
    above = np.where(found > expected.high_GBps, FAST, AS_EXPECTED)
    verdict = np.where(found < expected.low_GBps, SLOW, above)
    remarks = [
        _remark(group, expected.iloc[at], value, {name: float(busbw[at]) for name, busbw in others})
        if kind != AS_EXPECTED
        else ""
        for at, (value, kind) in enumerate(zip(found, verdict, strict=True))
    ]
    judged = expected.assign(busbw_GBps=found, verdict=verdict, remark=remarks)
    return judged.set_index(measured.index)


def _alternatives(group: Group, sizes: Array) -> Iterator[tuple[str, Array]]:
    """Yield other links and protocols of the cluster, and the bus bandwidth that each gives."""
    levels, own = limits(group), _lowest_limit(group)
    candidates = [(one.link, one, group) for one in levels if one.crossed and one != own]
    if group.nodes > 1:
        for other in (read_protocols()[name] for name in group.cluster.protocols):
            if other != group.protocol:
                over = replace(group, protocol=other)
                candidates.append((f"{other.label} between nodes", limits(over)[-1], over))
    # If ring neighbours are on different nodes, all of a node's ranks send through its NICs.
    sharing = group.ranks_per_node
    if sharing > 1 and group.collective != "all_to_all":
        fabric = levels[-1]
        shared = replace(fabric, typical_GBps=fabric.typical_GBps / sharing)
        candidates.append((f"{fabric.link}, crossed by every hop of the ring,", shared, group))
    for name, limit, transported in candidates:
        yield name, group.busbw_GBps(sizes, _link_times(transported, limit, sizes).time_s)


def _remark(group: Group, expected: pd.Series, found: float, others: dict[str, float]) -> str:
    """Explain why a value may be outside its interval; `others` are typical ones by name."""
    limit = _lowest_limit(group)
    if found > limit.most_GBps:
        return (
            f"impossible: {limit.link} allows {limit.most_GBps:.3g} GB/s; "
            "check the sizes, units, ranks and cluster"
        )
    if found > limit.ceiling_GBps:
        return (
            f"more than a ring can have of {limit.link}; trees over two nodes and reduction "
            f"in switches can, up to {limit.most_GBps:.3g} GB/s"
        )
    slow = found < expected.low_GBps
    by = expected.low_GBps / found if slow else found / expected.high_GBps
    size = f"{by:.2g} times {'below' if slow else 'above'} the interval"
    # An alternative inside the interval explains nothing.
    fitting = [
        (distance, name, typical)
        for name, typical in others.items()
        if (typical < expected.low_GBps if slow else typical > expected.high_GBps)
        and (distance := abs(np.log(found / typical))) <= FABRIC_EFFICIENCY.deviation
    ]
    if not fitting:
        return f"{size}; agrees with no other link or protocol of the cluster"
    _, name, typical = min(fitting)
    return f"{size}; about what {name} gives ({typical:.3g} GB/s)"


def busbw_table(rows: pd.DataFrame) -> str:
    """Format expected or judged bus bandwidths as text, a block per collective and ranks."""
    blocks = []
    for _, block in rows.groupby(_HEAD, sort=False):
        head = block.iloc[0]
        shown = block.assign(size=[_size_text(size) for size in block.size_bytes])
        shown = shown[[name for name in _BODY if name in shown]]
        blocks.append(
            f"{head.collective}, {head.ranks} ranks on {head.nodes} "
            f"node{'s' if head.nodes > 1 else ''}: "
            f"bus bandwidth predicted from {head.basis}, with its 90 % interval; "
            f"a ring's nominal ceiling is {head.ceiling_GBps:.4g} GB/s\n"
            + shown.to_string(index=False, float_format="{:.3g}".format)
        )
    return "\n\n".join(blocks)


def _size_text(size_bytes: float) -> str:
    """Write a size in the largest binary unit that divides it."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes % 1024**power == 0:
            return f"{size_bytes / 1024**power:.0f} {unit}"
    return f"{size_bytes:.0f} B"
