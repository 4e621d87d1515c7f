"""Bus bandwidth to expect of collectives on a cluster, and a verdict on measured ones.

Where the cluster names a measured network, its fitted curve (`repro.predict.network.links`) gives
the prediction. Elsewhere the links' nominal rates do, with the intervals of unknown networks.
"""

import re
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
from repro.predict.network.links import (
    FABRIC_EFFICIENCY,
    NEW_NETWORK,
    NetworkCalibration,
    RegimeTimes,
    collective_arrays,
    measured_network,
    read_links,
    regime_times,
    usual_costs,
)
from repro.predict.workload import Array

AS_EXPECTED, SLOW, FAST = "as expected", "slow", "fast"
# Fields of `RegimeTimes` as text.
_TRANSFER = "transfer"
_REGIMES = ("latency", "start-up", _TRANSFER)

# 1 KiB to 4 GiB, each four times the one before.
STANDARD_SIZES = tuple(4**power for power in range(5, 17))
# K, M and G are powers of 1024, as in nccl-tests, and so are KiB, MiB and GiB. KB, MB and GB are
# powers of 1000.
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMG])(I?B)?|B)?\s*", re.IGNORECASE)
_PREFIXES = " KMG"
# Columns with one value per block of a printed table, and the others.
_HEAD = ["collective", "ranks", "nodes", "ceiling_GBps", "basis"]
_ROWS = ["size", "in_place", "busbw_GBps", "low_GBps", "typical_GBps", "high_GBps"]
_WORDS = ["verdict", "regime", "limit", "remark"]


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
    entry = cluster(cluster_name)
    transport = _transport(entry, protocol)
    group = group_on(entry, collective, ranks, nodes)
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=float))
    return _Setting(entry, transport).expect(group, sizes)


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
    """A cluster and the protocol between its nodes; None: its own network."""

    cluster: Cluster
    protocol: Protocol | None

    def expect(self, group: Group, sizes: Array) -> pd.DataFrame:
        """Return the table of `expected_busbw`."""
        limit = self._limit(group)
        rows = pd.DataFrame({**vars(group), "size_bytes": sizes})
        network = self._network(group)
        if network is None:
            times = _by_links(rows, limit, self.protocol)
            half_width: Array | float = read_links().residuals[NEW_NETWORK].half_width
            basis = "link rates"
        else:
            chosen = collective_arrays(rows)
            times = network.times(chosen)
            half_width = network.half_widths(chosen, times)
            basis = f"collectives of {network.gpu}, {network.network}"
        typical, width = _busbw_GBps(rows, times), np.exp(half_width)
        # A link's nominal rate bounds the interval, but for higher measured ones.
        ceiling = np.maximum(limit.ceiling_GBps, typical)
        seconds = np.stack(np.broadcast_arrays(times.latency, times.startup, times.transfer))
        regime = np.array(_REGIMES)[seconds.argmax(axis=0)]
        return rows.assign(
            low_GBps=typical / width,
            typical_GBps=typical,
            high_GBps=np.minimum(typical * width, ceiling),
            regime=regime,
            limit=[limit.link if name == _TRANSFER else f"{name}, not a link" for name in regime],
            ceiling_GBps=limit.ceiling_GBps,
            basis=basis,
        )

    def judge(self, group: Group, measured: pd.DataFrame) -> pd.DataFrame:
        """Return the table of `judge_busbw` for one group."""
        sizes = measured.size_bytes.to_numpy(dtype=float)
        seconds = measured.time_us.to_numpy(dtype=float) * 1e-6
        found = busbw_GBps(group.collective, group.ranks, sizes, seconds)
        expected = self.expect(group, sizes)
        others = list(self._alternatives(group, expected))
        above = np.where(found > expected.high_GBps, FAST, AS_EXPECTED)
        verdict = np.where(found < expected.low_GBps, SLOW, above)
        remarks = [
            self._remark(group, expected.iloc[at], value, others, at) if kind != AS_EXPECTED else ""
            for at, (value, kind) in enumerate(zip(found, verdict, strict=True))
        ]
        judged = expected.assign(busbw_GBps=found, verdict=verdict, remark=remarks)
        return judged.set_index(measured.index)

    def _limit(self, group: Group) -> Limit:
        """Return the crossed level with the lowest rate."""
        crossed = [limit for limit in limits(self.cluster, group, self.protocol) if limit.crossed]
        return min(crossed, key=lambda limit: limit.typical_GBps)

    def _network(self, group: Group) -> NetworkCalibration | None:
        """Return the cluster's network if it was measured on one node or several, as the group."""
        network = measured_network(self.cluster) if self.protocol is None else None
        if network is None:
            return None
        known = any((peak.nodes == 1) == (group.nodes == 1) for peak in network.peaks)
        return network if known else None

    def _alternatives(self, group: Group, expected: pd.DataFrame) -> Iterator[tuple[str, Array]]:
        """Yield other links and protocols of the cluster, and the bus bandwidth that each gives."""
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
        # If ring neighbours are on different nodes, all of a node's ranks send through its NICs.
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
        """Explain why a value may be outside its interval."""
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
            # An alternative inside the interval explains nothing.
            apart = typical < expected.low_GBps if slow else typical > expected.high_GBps
            if apart and abs(np.log(found / typical)) <= FABRIC_EFFICIENCY.deviation:
                fitting.append((abs(np.log(found / typical)), name, typical))
        if not fitting:
            return f"{size}; agrees with no other link or protocol of the cluster"
        _, name, typical = min(fitting)
        return f"{size}; about what {name} gives ({typical:.3g} GB/s)"


def _by_links(rows: pd.DataFrame, limit: Limit, protocol: Protocol | None) -> RegimeTimes:
    """Predict seconds from a link's rate, with the usual costs of networks without measurements."""
    nodes = int(rows.nodes.iloc[0])
    costs = usual_costs(nodes)
    if protocol is not None and nodes > 1:
        # A dependent message takes at least the protocol's latency.
        hop_s = max(costs.hop_s, protocol.latency_us * 1e-6)
        costs = costs.model_copy(update={"hop_s": hop_s})
    chosen = collective_arrays(rows)
    transfer_s = _link_bytes(rows) / (1e9 * limit.typical_GBps)
    return regime_times(chosen.link_bytes, chosen.steps, transfer_s, costs)


def _link_bytes(rows: pd.DataFrame) -> Array:
    """Return the bytes that bus bandwidth counts."""
    factor = bus_factor(str(rows.collective.iloc[0]), rows.ranks.to_numpy())
    link_bytes: Array = factor * rows.size_bytes.to_numpy(dtype=float)
    return link_bytes


def _busbw_GBps(rows: pd.DataFrame, times: RegimeTimes) -> Array:
    return _link_bytes(rows) / times.time_s * 1e-9


def parse_size(text: str) -> float:
    """Parse a size in bytes: `64MiB`, `1G`, `100 MB`, `4096`.

    Raises
    ------
    ReproError
        The text is no size.
    """
    found = _SIZE.fullmatch(text)
    if not found or float(found[1]) == 0:
        raise ReproError(f"size {text!r}: take a number of bytes, KiB, MiB or GiB, such as 64MiB")
    base = 1000.0 if (found[3] or "").upper() == "B" else 1024.0
    power = _PREFIXES.index((found[2] or " ").upper())
    return float(found[1]) * float(base**power)


def busbw_table(rows: pd.DataFrame) -> str:
    """Format expected or judged bus bandwidths as text, a block per collective and ranks."""
    blocks = []
    for key, block in rows.groupby(_HEAD, sort=False):
        collective, ranks, nodes, ceiling, basis = cast(tuple[str, int, int, float, str], key)
        head = (
            f"{collective}, {ranks} ranks on {nodes} node{'s' if nodes > 1 else ''}: bus bandwidth "
            f"predicted from {basis}, with its 90 % interval; a ring's nominal ceiling is "
            f"{ceiling:.4g} GB/s"
        )
        shown = block.assign(size=[_size_text(size) for size in block.size_bytes])
        shown = shown[[name for name in (*_ROWS, *_WORDS) if name in shown]]
        text = shown.to_string(index=False, float_format="{:.3g}".format)
        blocks.append(f"{head}\n{text}")
    return "\n\n".join(blocks)


def _size_text(size_bytes: float) -> str:
    """Write a size in the largest binary unit that divides it."""
    for power in (3, 2, 1):
        if size_bytes % 1024**power == 0:
            return f"{size_bytes / 1024**power:.0f} {_PREFIXES[power]}iB"
    return f"{size_bytes:.0f} B"
