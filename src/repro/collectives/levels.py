"""Which links the bytes of a collective cross."""

from collections import Counter
from collections.abc import Sequence

from repro.catalog.systems.topology import Topology
from repro.collectives.definitions import bus_factor


def sent_by_level(
    operation: str, ranks: Sequence[int], size_bytes: float, topology: Topology
) -> dict[str, float]:
    """What a rank sends in a collective by nccl-tests' bus factor, the mean of all its ranks.

    It is by the widest level of links on the way: round a ring in the order of ranks, or in an
    all-to-all to each.

    Of a ring over whole nodes, one rank of a node sends out of it, and the others do not.
    """
    if operation == "all_to_all":
        hops = [(one, other) for one in ranks for other in ranks if one != other]
    else:
        hops = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    crossed = Counter(topology.spanned(hop) for hop in hops)
    sent = float(bus_factor(operation, len(ranks))) * size_bytes
    return {level: sent * count / len(hops) for level, count in crossed.items()}
