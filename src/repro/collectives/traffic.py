"""What collectives put on a rank's link: the bytes that a measurement is compared with."""

import numpy as np

from repro.collectives.definitions import bus_factor

# Of gloo's reduction (gloo/reduce.h: kMaxSegmentSize); no fewer than two segments for each rank.
_LARGEST_SEGMENT_BYTES = 1 << 20


def received_bytes(collective: str, size_bytes: int, rank: int, ranks: int) -> float:
    """Bytes that one rank receives, headers apart, by the algorithms that gloo takes.

    Most collectives carry `bus_factor` times their size over every link, in rings as between pairs.
    Of a broadcast every rank but the root (rank 0) receives all. A reduction is a ring
    reduce-scatter, after which the root gathers the parts: 2 (n-1)/n of the size for the root,
    (n-1)/n for the others, where NCCL's chain hands every rank but the last of it the whole size.
    From 2 n MiB on, gloo's reduce-scatter passes on more than it needs: all segments of at most
    1 MiB but two, so that up to the whole size takes the place of its (n-1)/n.

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
    """gloo/reduce.cc; that segments hold whole elements is left out."""
    segment = min(-(-size_bytes // (2 * ranks)), _LARGEST_SEGMENT_BYTES)
    each = max(2, -(-size_bytes // (segment * ranks)))
    # The rank's segments of all but two steps; the last ones may be short, or empty.
    starts = segment * ((np.arange(each * ranks - 2) + (rank + 2) * each) % (each * ranks))
    received = int(np.clip(size_bytes - starts, 0, segment).sum())
    gathered = size_bytes - min(segment * each, size_bytes) if rank == 0 else 0
    return float(received + gathered)
