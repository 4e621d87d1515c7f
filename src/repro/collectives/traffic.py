"""What collectives put on a rank's link: the bytes that a measurement is compared with."""

from repro.collectives.definitions import bus_factor


def received_bytes(collective: str, size_bytes: float, rank: int, ranks: int) -> float:
    """Bytes that one rank receives, headers apart, by the algorithms that gloo takes.

    Most collectives carry `bus_factor` times their size over every link, in rings as between pairs.
    Of a broadcast every rank but the root (rank 0) receives all. A reduction is a ring
    reduce-scatter, after which the root gathers the parts: 2 (n-1)/n of the size for the root,
    (n-1)/n for the others, where NCCL's chain hands every rank but the last of it the whole size.

    Raises
    ------
    ReproError
        The collective is unknown.
    """
    factor = float(bus_factor(collective, ranks))
    if collective == "broadcast":
        factor = float(rank != 0)
    elif collective == "reduce":
        factor = (2 if rank == 0 else 1) * (ranks - 1) / ranks
    return factor * size_bytes
