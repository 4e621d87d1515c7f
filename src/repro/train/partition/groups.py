"""Process groups of a partition: neighbours, and ranks with a stride."""

from collections.abc import Mapping

import torch.distributed as dist

from repro.catalog.parallel.partitions import Partition, hops

# Groups by their number of ranks and the stride between these.
Groups = Mapping[tuple[int, int], dist.ProcessGroup]


def join_partition(partition: Partition) -> Groups:
    """Join this rank's groups of every size that a partition needs; all ranks call it."""
    n, w, g, o = partition.ranks, partition.weights, partition.gradients, partition.optimizer
    needed = {(w, 1), (g // w, w), (o // g, g), (n // o, o), (o, 1)}
    if partition.int4_gradients:
        for ranks, stride in ((w, 1), (g // w, w), (o // g, g)):
            needed |= {(along, apart) for along, apart, _ in hops(partition, ranks, stride)}
    # FSDP2 needs a group also if a rank has all weights.
    return {key: _join(n, *key) for key in sorted(needed) if key[0] > 1 or key == (w, 1)}


def _join(everybody: int, ranks: int, stride: int) -> dist.ProcessGroup:
    block = ranks * stride
    members = [
        list(range(first + offset, first + block, stride))
        for first in range(0, everybody, block)
        for offset in range(stride)
    ]
    own: dist.ProcessGroup
    own, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        members, group_desc=f"PARTITION_{ranks}_BY_{stride}"
    )
    return own
