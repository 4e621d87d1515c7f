"""The bus bandwidth to expect of collectives on a cluster, and a verdict on measured ones.

What is expected is a prediction. Where the cluster names a measured network, that network's model
makes it; elsewhere the links' rates do, with the widths of networks that were never measured.
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
from repro.predict.network.busbw_limits import Group, Limit, group_on, limits
from repro.predict.network.link_prediction import (
    MeasuredNetwork,
    measured_network,
    predict_collective,
)
from repro.predict.network.links import (
    FABRIC_EFFICIENCY,
    NEW_NETWORK,
    Costs,
    Parts,
    as_cases,
    cost_priors,
    read_links,
)
from repro.predict.workload import Array

LATENCY, STARTUP, TRANSFER = "latency", "start-up", "transfer"
REGIMES = (LATENCY, STARTUP, TRANSFER)
AS_EXPECTED, SLOW, FAST = "as expected", "slow", "fast"


def expected_busbw(
    cluster_name: str,
    collective: str,
    size_bytes: ArrayLike,
    ranks: int,
    protocol: str | None = None,
    nodes: int | None = None,
) -> pd.DataFrame:
    """The bus bandwidth to expect of a collective, by size.

    Parameters
    ----------
    cluster_name : str
        A name of `params/clusters.yaml`.
    size_bytes : array-like
        By nccl-tests' definition, as all of `repro.collectives`.
    protocol : str, optional
        One of the cluster's, between nodes. Without it: the cluster's measured network, or its
        fabric's nominal rate.
    nodes : int, optional
        That the ranks are spread over; without it they fill one after another.

    Returns
    -------
    DataFrame
        A row per size: collective, ranks, nodes, size_bytes; low_GBps, typical_GBps and high_GBps,
        the 90 % interval of the bus bandwidth (1e9 B/s) and its middle; regime, what most of the
        time goes to; limit, the link that limits the transfer with its nominal rate, or that no
        link does; ceiling_GBps, the bus bandwidth of a ring at that link's nominal rate; basis,
        where the numbers come from.

    Raises
    ------
    ReproError
        A name is unknown, or the cluster has no room for the ranks.

    Examples
    --------
    >>> expected = expected_busbw("pinnacles", "all_reduce", [2**20, 2**30], 8, "rdma")
    >>> expected.limit.tolist()
    ['fabric: 100 Gbit/s per node', 'fabric: 100 Gbit/s per node']
    """
    entry = cluster(cluster_name)
    transport = _transport(entry, protocol)
    group = group_on(entry, collective, ranks, nodes)
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=float))
    return _Setting(entry, transport).expect(group, sizes)


def judge_busbw(
    measured: pd.DataFrame, cluster_name: str, protocol: str | None = None
) -> pd.DataFrame:
    """Compare measured collectives with what is to be expected of them.

    Parameters
    ----------
    measured : DataFrame
        As `repro.logs.reading.read_log` reads them. Bus bandwidths are computed from times;
        without `nodes`, ranks fill one after another.
    cluster_name, protocol
        As in `expected_busbw`.

    Returns
    -------
    DataFrame
        By the index of `measured`: the columns of `expected_busbw`; busbw_GBps, which was measured;
        verdict, one of `AS_EXPECTED`, `SLOW` (below the interval) and `FAST` (above it); and
        remark, by how much, and what it would agree with.

    Raises
    ------
    ReproError
        A name is unknown, or the cluster has no room for the ranks.
    """
    entry = cluster(cluster_name)
    setting = _Setting(entry, _transport(entry, protocol))
    groups = measured.reset_index(drop=True).groupby(["collective", "ranks", "nodes"], dropna=False)
    parts = []
    for key, rows in groups:
        name, ranks, nodes = cast(tuple[str, int, float], key)
        on = None if pd.isna(nodes) else int(nodes)
        parts.append(setting.judge(group_on(entry, name, int(ranks), on), rows))
    return pd.concat(parts).sort_index().set_axis(measured.index)


def _transport(entry: Cluster, name: str | None) -> Protocol | None:
    if name is None:
        return None
    if not entry.protocols:
        raise ReproError(f"protocol {name!r}: {entry.label} has no protocols; leave it out")
    known = read_protocols()
    return choose("protocol", name, {own: known[own] for own in entry.protocols})


@dataclass(frozen=True)
class _Setting:
    """A cluster and what its nodes talk over; None: its own network."""

    cluster: Cluster
    protocol: Protocol | None

    def expect(self, group: Group, sizes: Array) -> pd.DataFrame:
        """The table of `expected_busbw`."""
        limit = self._limit(group)
        rows = pd.DataFrame(
            {
                "collective": group.collective,
                "ranks": group.ranks,
                "nodes": group.nodes,
                "size_bytes": sizes,
            }
        )
        network = self._network(group)
        if network is None:
            parts = _by_links(rows, limit, self.protocol)
            half_width: Array | float = read_links().residuals[NEW_NETWORK].half_width
            basis = "link rates"
        else:
            named = rows.assign(gpu=network.model.gpu, network=network.model.network)
            parts = network.model.parts_s(as_cases(rows))
            half_width = predict_collective(named).half_width.to_numpy()
            basis = f"collectives of {network.model.gpu}, {network.model.network}"
        typical, width = _busbw_GBps(rows, parts), np.exp(half_width)
        # Nothing is expected above a link's nominal rate but where it was measured.
        ceiling = np.maximum(limit.ceiling_GBps, typical)
        shares = np.stack(np.broadcast_arrays(parts.latency, parts.startup, parts.transfer))
        regime = np.array(REGIMES)[shares.argmax(axis=0)]
        return rows.assign(
            low_GBps=typical / width,
            typical_GBps=typical,
            high_GBps=np.minimum(typical * width, ceiling),
            regime=regime,
            limit=[limit.link if name == TRANSFER else f"{name}, not a link" for name in regime],
            ceiling_GBps=limit.ceiling_GBps,
            basis=basis,
        )

    def judge(self, group: Group, measured: pd.DataFrame) -> pd.DataFrame:
        """The table of `judge_busbw`, of one group."""
        sizes = measured.size_bytes.to_numpy(dtype=float)
        seconds = measured.time_us.to_numpy(dtype=float) * 1e-6
        found = busbw_GBps(group.collective, group.ranks, sizes, seconds)
        expected = self.expect(group, sizes)
        others = list(self._alternatives(group, expected))
        verdict = np.where(
            found < expected.low_GBps,
            SLOW,
            np.where(found > expected.high_GBps, FAST, AS_EXPECTED),
        )
        remarks = [
            self._remark(group, expected.iloc[at], value, others, at) if kind != AS_EXPECTED else ""
            for at, (value, kind) in enumerate(zip(found, verdict, strict=True))
        ]
        judged = expected.assign(busbw_GBps=found, verdict=verdict, remark=remarks)
        return judged.set_index(measured.index)

    def _limit(self, group: Group) -> Limit:
        """The crossed level with the lowest rate."""
        crossed = [limit for limit in limits(self.cluster, group, self.protocol) if limit.crossed]
        return min(crossed, key=lambda limit: limit.typical_GBps)

    def _network(self, group: Group) -> MeasuredNetwork | None:
        """The cluster's measured network; None where it says nothing of the group's level."""
        network = measured_network(self.cluster) if self.protocol is None else None
        if network is None:
            return None
        one_node = group.nodes == 1
        known = any((nodes == 1) == one_node for _, nodes in network.model.table)
        return network if known else None

    def _alternatives(self, group: Group, expected: pd.DataFrame) -> Iterator[tuple[str, Array]]:
        """What else of the cluster could have carried a group, and the bus bandwidth it gives."""
        levels = limits(self.cluster, group, self.protocol)
        own = self._limit(group)
        candidates = [
            (limit.link, limit, self.protocol) for limit in levels if limit.crossed and limit != own
        ]
        known = read_protocols()
        others = [known[name] for name in self.cluster.protocols if known[name] != self.protocol]
        if group.nodes > 1:
            for other in others:
                over = limits(self.cluster, group, other)[-1]
                candidates.append((f"{other.label} between nodes", over, other))
        # A node's NICs then carry every rank's messages, not those of one.
        sharing = group.ranks_per_node
        if sharing > 1 and group.collective != "all_to_all":
            fabric = levels[-1]
            shared = replace(fabric, typical_GBps=fabric.typical_GBps / sharing)
            name = f"{fabric.link}, crossed by every hop of the ring,"
            candidates.append((name, shared, self.protocol))
        for name, limit, transport in candidates:
            yield name, _busbw_GBps(expected, _by_links(expected, limit, transport))

    def _remark(
        self,
        group: Group,
        expected: pd.Series,
        found: float,
        others: list[tuple[str, Array]],
        at: int,
    ) -> str:
        """Why a value may be out of its interval."""
        limit = self._limit(group)
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
        fitting = []
        for name, busbw in others:
            typical = float(busbw[at])
            # One that would itself be as expected explains nothing.
            apart = typical < expected.low_GBps if slow else typical > expected.high_GBps
            if apart and abs(np.log(found / typical)) <= FABRIC_EFFICIENCY.deviation:
                fitting.append((abs(np.log(found / typical)), name, typical))
        if not fitting:
            return f"{size}; agrees with no other link or protocol of the cluster"
        _, name, typical = min(fitting)
        return f"{size}; about what {name} gives ({typical:.3g} GB/s)"


def _by_links(rows: pd.DataFrame, limit: Limit, protocol: Protocol | None) -> Parts:
    """Times by a link's rate and what collectives of unknown networks cost beside it."""
    nodes = int(rows.nodes.iloc[0])
    costs = {name: prior.median for name, prior in cost_priors(nodes).items()}
    if protocol is not None and nodes > 1:
        # Each message that waits for another one is at least that far away.
        costs["hop_s"] = max(costs["hop_s"], protocol.latency_us * 1e-6)
    cases = as_cases(rows)
    transfer = _link_bytes(rows) / (1e9 * limit.typical_GBps)
    return cases.parts_s(cases.link_bytes / transfer, Costs(**costs))


def _link_bytes(rows: pd.DataFrame) -> Array:
    """Bytes that bus bandwidth counts."""
    factor = bus_factor(str(rows.collective.iloc[0]), rows.ranks.to_numpy())
    link_bytes: Array = factor * rows.size_bytes.to_numpy(dtype=float)
    return link_bytes


def _busbw_GBps(rows: pd.DataFrame, parts: Parts) -> Array:
    return _link_bytes(rows) / parts.time_s * 1e-9
