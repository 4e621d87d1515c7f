"""Likely causes of a bandwidth outside its interval, each with the bandwidth that it gives."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from repro.catalog.systems.protocols import read_protocols
from repro.predict.network.limits import Group, Limit, limits, lowest_limit, pcie_GBps

# GB/s of one GPU whose data pass host memory on the way to its NIC (2 x 8 H100 with RoCE: 12.6 of
# an all-gather, 13.1 of send_recv); and largest fraction of the NICs' rate.
_HOST_STAGED_GBPS, _HOST_STAGED_FRACTION = 13.0, 0.6
# GB/s of TCP sockets on one NIC: 2 x 8 H200 reach 35 in all, 2 x 8 A100 with two NICs 7.
_SOCKET_GBPS = 3.5
# A cause explains a bandwidth within this factor, of which three are named.
_NEAR, _NAMED = 0.45, 3


def causes(group: Group) -> Iterator[tuple[str, Group, Limit]]:
    """Yield other links, protocols and faults of the cluster by name, with the limit of each."""
    levels, own = limits(group), lowest_limit(group)
    for level in levels:
        if level.crossed and level != own:
            yield level.link, group, level
    if group.nodes > 1:
        yield from _between_nodes(group, levels[-1])
    else:
        yield "half of the GPU's links", group, _times(own, 0.5)
        if (pcie := pcie_GBps(group.cluster)) < own.ring_GBps:
            yield "PCIe instead of the GPU's links", group, _times(own, pcie / own.ring_GBps)


def _between_nodes(group: Group, fabric: Limit) -> Iterator[tuple[str, Group, Limit]]:
    for name in group.cluster.protocols:
        other = read_protocols()[name]
        if other != group.protocol:
            over = replace(group, protocol=other)
            yield f"{other.label} between nodes", over, limits(over)[-1]
    used, nics = group.fabric_GBps, max(1, round(group.fabric_GBps / group.nic_GBps))
    staged = min(_HOST_STAGED_GBPS * group.senders, _HOST_STAGED_FRACTION * used)
    yield "NICs without GPUDirect (data pass host memory)", group, _times(fabric, staged / used)
    if group.protocol is None:
        sockets = min(_SOCKET_GBPS * nics, used)
        yield "TCP sockets instead of RDMA", group, _times(fabric, sockets / used)
    if nics > 1:
        yield f"one NIC of {nics}", group, _times(fabric, 1 / nics)
    if nics > 2:
        yield "half of the NICs", group, _times(fabric, 0.5)
    # If ring neighbours are on different nodes, all of a node's ranks send through its NICs.
    if group.ranks_per_node > 1 and group.collective not in ("all_to_all", "send_recv"):
        shared = _times(fabric, 1 / group.ranks_per_node)
        yield f"{fabric.link}, crossed by every hop of the ring,", group, shared


def _times(limit: Limit, fraction: float) -> Limit:
    return replace(limit, typical_GBps=limit.typical_GBps * fraction)


def remark(group: Group, expected: pd.Series, found: float, others: Mapping[str, float]) -> str:
    """Explain why a value may be outside its interval; `others` are typical ones by cause."""
    limit = lowest_limit(group)
    if found > limit.most_GBps:
        return (
            f"impossible: {limit.link} allows {limit.most_GBps:.3g} GB/s; "
            "check the sizes, units, ranks and cluster"
        )
    if found > limit.ring_GBps:
        return (
            f"more than a ring can have of {limit.link}; trees over two nodes and reduction "
            f"in switches can, up to {limit.most_GBps:.3g} GB/s"
        )
    slow = found < expected.low_GBps
    size = _distance(found, expected.low_GBps if slow else expected.high_GBps)
    if expected.regime != "transfer":
        return f"{size}; {expected.regime}-bound, so links do not explain it"
    # A cause inside the interval explains nothing.
    outside = {
        name: typical
        for name, typical in others.items()
        if (typical < expected.low_GBps if slow else typical > expected.high_GBps)
    }
    near = sorted((abs(np.log(found / typical)), name) for name, typical in outside.items())
    fitting = [name for distance, name in near if distance <= _NEAR][:_NAMED]
    if fitting:
        given = ", or ".join(f"{name} gives ({outside[name]:.3g} GB/s)" for name in fitting)
        return f"{size}; about what {given}"
    nearest = f"; the nearest, {near[0][1]}, gives {outside[near[0][1]]:.3g} GB/s" if near else ""
    return f"{size}; agrees with no other link or protocol of the cluster{nearest}"


def _distance(found: float, end: float) -> str:
    """Describe how far a value is from an end of its interval."""
    side = "below" if found < end else "above"
    if found < end / 2 or found > 2 * end:
        return f"{max(found / end, end / found):.2g} times {side} the interval"
    return f"{100 * abs(1 - found / end):.2g} % {side} the interval"
