"""Expected bytes of gloo's collectives on a rank's link, for comparison with NIC counters."""

import numpy as np

from repro.collectives.definitions import bus_factor

# Segments of gloo's reduction (gloo/reduce.h: kMaxSegmentSize), at least two for each rank.
_LARGEST_SEGMENT_BYTES = 1 << 20


def received_bytes(collective: str, size_bytes: int, rank: int, ranks: int) -> float:
    """Return the bytes that one rank receives by gloo's algorithms, without headers.

    Most collectives carry `bus_factor` times their size over every link, in rings and between
    pairs. In a broadcast, every rank except the root (rank 0) receives the full size. A reduction
    is a ring reduce-scatter, after which the root gathers the parts: the root receives 2 (n-1)/n of
    the size, other ranks (n-1)/n. In NCCL's chain, every rank except its last one receives the full
    size. From 2 n MiB on, gloo's reduce-scatter passes on more than necessary: all segments of at
    most 1 MiB except two. Its (n-1)/n of the size then becomes up to the full size.

    Raises
    ------
    ReproError
        The collective is unknown.
    """
    factor = float(bus_factor(collective, ranks))
    if collective == "broadcast":
        factor = float(rank != 0)
    elif collective == "reduce":
        return _reduction(size_bytes, rank, ranks)
    return factor * size_bytes


def _reduction(size_bytes: int, rank: int, ranks: int) -> float:
    """Return the bytes of a reduction, as in gloo/reduce.cc without rounding to elements."""
    segment = min(-(-size_bytes // (2 * ranks)), _LARGEST_SEGMENT_BYTES)
    each = max(2, -(-size_bytes // (segment * ranks)))
    # Segments that the rank receives: all except two. The last ones may be short or empty.
    starts = segment * ((np.arange(each * ranks - 2) + (rank + 2) * each) % (each * ranks))
    received = int(np.clip(size_bytes - starts, 0, segment).sum())
    gathered = size_bytes - min(segment * each, size_bytes) if rank == 0 else 0
    return float(received + gathered)
