"""Bytes that a collective sends over each level of links."""

from collections import Counter
from collections.abc import Sequence

from repro.catalog.systems.topology import Topology
from repro.collectives.definitions import bus_factor


def sent_by_level(
    operation: str, ranks: Sequence[int], size_bytes: float, topology: Topology
) -> dict[str, float]:
    """Return the bytes that a rank sends in a collective, by level; the mean over its ranks.

    The total is `bus_factor` times the size. Bytes count at the widest level on their route: along
    a ring in the order of ranks, or in an all-to-all to every other rank. In a ring over full
    nodes, one rank of each node sends to another node.
    """
    if operation == "all_to_all":
        hops = [(one, other) for one in ranks for other in ranks if one != other]
    else:
        hops = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    crossed = Counter(topology.lowest_common_level(hop) for hop in hops)
    sent = float(bus_factor(operation, len(ranks))) * size_bytes
    return {level: sent * count / len(hops) for level, count in crossed.items()}
