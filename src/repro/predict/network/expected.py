"""Bus bandwidth to expect of collectives on a cluster, and a verdict on measured ones.

Where the cluster names a measured network, its fitted curve (`repro.predict.network.links`) gives
the prediction. Elsewhere the links' nominal rates do (`repro.predict.network.limits`): transfers
have the interval of their mechanism, latencies and start-ups that of unknown networks.
"""

from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.clusters import cluster as read_cluster
from repro.collectives.definitions import bus_factor, collective_name
from repro.predict.network.causes import causes, remark
from repro.predict.network.limits import Group, Limit, group_on, lowest_limit
from repro.predict.network.links import (
    NEW_NETWORK,
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
    cluster: str | Cluster,
    collective: str,
    size_bytes: ArrayLike,
    ranks: int,
    protocol: str | None = None,
    nodes: int | None = None,
) -> pd.DataFrame:
    """Predict the bus bandwidth of a collective by size.

    Parameters
    ----------
    cluster : str or Cluster
        A name in `params/clusters.yaml`, or a described cluster.
    collective : str
        In any usual spelling, such as AllReduce or all-reduce.
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
        link does; ceiling_GBps, the bus bandwidth of NCCL's best algorithm at that link's nominal
        rate; basis, the source of the numbers.

    Raises
    ------
    ReproError
        A name is unknown, or the ranks do not fit on the nodes.

    Examples
    --------
    >>> expected = expected_busbw("pinnacles", "all_reduce", [2**20, 2**30], 8, "rdma")
    >>> expected.limit.tolist()
    ['fabric: 100 Gbit/s per node', 'fabric: 100 Gbit/s per node']
    """
    group = group_on(_resolved(cluster), collective_name(collective), ranks, nodes, protocol)
    sizes = np.atleast_1d(np.asarray(size_bytes, dtype=float))
    return _expect(group, sizes, np.ones_like(sizes))


def _resolved(cluster: str | Cluster) -> Cluster:
    return cluster if isinstance(cluster, Cluster) else read_cluster(cluster)


def judge_busbw(
    measured: pd.DataFrame, cluster: str | Cluster, protocol: str | None = None
) -> pd.DataFrame:
    """Compare measured collectives with their expected bus bandwidth.

    Parameters
    ----------
    measured : DataFrame
        Rows as `repro.logs.reading.read_log` reads them. Bus bandwidths are computed from times;
        without `nodes`, ranks fill one after another.
    cluster, protocol
        As in `expected_busbw`.

    Returns
    -------
    DataFrame
        By the index of `measured`: the columns of `expected_busbw`; the measured busbw_GBps;
        verdict, one of `AS_EXPECTED`, `SLOW` (below the interval) and `FAST` (above it); and
        remark, by how much, and which links, protocols or faults would explain it.

    Raises
    ------
    ReproError
        A name is unknown, or the ranks do not fit on the nodes.
    """
    entry = _resolved(cluster)
    groups = measured.reset_index(drop=True).groupby(["collective", "ranks", "nodes"], dropna=False)
    parts = []
    for key, rows in groups:
        name, ranks, nodes = cast(tuple[str, int, float], key)
        on = None if pd.isna(nodes) else int(nodes)
        parts.append(_judge(group_on(entry, name, int(ranks), on, protocol), rows))
    return pd.concat(parts).sort_index().set_axis(measured.index)


def _expect(group: Group, sizes: Array, window: Array) -> pd.DataFrame:
    """Return the table of `expected_busbw`; latencies of `window` messages overlap."""
    limit = lowest_limit(group)
    names = {name: getattr(group, name) for name in ("collective", "ranks", "nodes")}
    rows = pd.DataFrame({**names, "size_bytes": sizes})
    network = measured_network(group.cluster) if group.protocol is None else None
    # A network that was measured on one node says nothing of several, nor the reverse.
    if network and any((peak.nodes == 1) == (group.nodes == 1) for peak in network.peaks):
        chosen = collective_arrays(rows)
        times = _overlapped(network.times(chosen), window)
        half_width: Array = network.half_widths(chosen, times)
        basis = f"collectives of {network.gpu}, {network.network}"
    else:
        times = _overlapped(_link_times(group, limit, sizes), window)
        fraction = times.transfer / times.time_s
        unknown = read_links().residuals[NEW_NETWORK].half_width
        half_width = fraction * limit.half_width + (1 - fraction) * unknown
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
        limit=[limit.link if name == _REGIMES[2] else f"{name}-bound" for name in regime],
        ceiling_GBps=limit.ceiling_GBps,
        basis=basis,
    )


def _overlapped(times: RegimeTimes, window: Array) -> RegimeTimes:
    """Return the times of one of `window` messages in flight."""
    return RegimeTimes(times.latency / window, times.startup / window, times.transfer)


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
    window = measured.window.to_numpy(dtype=float) if "window" in measured else np.ones_like(sizes)
    found = group.busbw_GBps(sizes, time_us * 1e-6)
    expected = _expect(group, sizes, window)
    others = {
        name: group.busbw_GBps(sizes, _overlapped(_link_times(over, limit, sizes), window).time_s)
        for name, over, limit in causes(group)
    }
    above = np.where(found > expected.high_GBps, FAST, AS_EXPECTED)
    verdict = np.where(found < expected.low_GBps, SLOW, above)
    remarks = [
        remark(group, expected.iloc[at], value, {name: one[at] for name, one in others.items()})
        if kind != AS_EXPECTED
        else ""
        for at, (value, kind) in enumerate(zip(found, verdict, strict=True))
    ]
    judged = expected.assign(busbw_GBps=found, verdict=verdict, remark=remarks)
    return judged.set_index(measured.index)


def peaks(judged: pd.DataFrame) -> pd.DataFrame:
    """Return the row with the highest bus bandwidth of each collective, ranks and nodes."""
    at = judged.reset_index(drop=True).groupby(["collective", "ranks", "nodes"], sort=False)
    return judged.iloc[at.busbw_GBps.idxmax()]


def whole_verdict(judged: pd.DataFrame) -> str:
    """Return the verdict of a log: `SLOW` if any peak is, else `FAST` if any is."""
    verdicts = set(peaks(judged).verdict)
    return next((one for one in (SLOW, FAST) if one in verdicts), AS_EXPECTED)


def summary(judged: pd.DataFrame) -> str:
    """Format the peaks of a log and its verdict as one line."""
    found = "; ".join(
        f"{row.collective} of {row.ranks} ranks {row.busbw_GBps:.3g} GB/s at "
        f"{size_text(float(row.size_bytes))} ({row.verdict}, {row.low_GBps:.3g} to "
        f"{row.high_GBps:.3g})"
        for _, row in peaks(judged).iterrows()
    )
    return f"peak: {found}; verdict: {whole_verdict(judged)}"


def busbw_table(rows: pd.DataFrame) -> str:
    """Format expected or judged bus bandwidths as text, a block per collective and ranks."""
    blocks = []
    for _, block in rows.groupby(_HEAD, sort=False):
        head = block.iloc[0]
        shown = block.assign(size=[size_text(size) for size in block.size_bytes])
        shown = shown[[name for name in _BODY if name in shown]]
        blocks.append(
            f"{head.collective}, {head.ranks} ranks on {head.nodes} "
            f"node{'s' if head.nodes > 1 else ''}: "
            f"bus bandwidth predicted from {head.basis}, with its 90 % interval; "
            f"the nominal ceiling is {head.ceiling_GBps:.4g} GB/s\n"
            + shown.to_string(index=False, float_format="{:.3g}".format)
        )
    return "\n\n".join(blocks)


def size_text(size_bytes: float) -> str:
    """Write a size with three digits in the largest binary unit that it reaches.

    Examples
    --------
    >>> size_text(2**26), size_text(25928 * 1024), size_text(1000)
    ('64 MiB', '25.3 MiB', '1000 B')
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            value = size_bytes / 1024**power
            return f"{value:.4g} {unit}" if value >= 1000 else f"{value:.3g} {unit}"
    return f"{size_bytes:.0f} B"
