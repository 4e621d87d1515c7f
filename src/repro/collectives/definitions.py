"""Bandwidths of collectives, as nccl-tests defines them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.catalog.studies.collectives import COLLECTIVES
from repro.errors import ReproError

# Bus bandwidth over algorithm bandwidth (size over time) for n ranks, from doc/PERFORMANCE.md of
# nccl-tests. For the three with (n - 1)/n, the size is that of all ranks' data together.
_BUS_FACTORS: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": np.ones_like,
    "reduce": np.ones_like,
    "send_recv": np.ones_like,
}
# Whether each collective can run in place. If torch has it in place only, out of place is a copy
# and the collective, as in torch's functional collectives. all_to_all and send_recv run only out
# of place, as in nccl-tests.
PLACES: dict[str, tuple[bool, ...]] = {
    "all_reduce": (False, True),
    "all_gather": (False, True),
    "reduce_scatter": (False, True),
    "broadcast": (False, True),
    "reduce": (False, True),
    "all_to_all": (False,),
    "send_recv": (False,),
}


# Spellings of NCCL, MPI and torch, without case and separators.
_SPELLINGS: Mapping[str, str] = {
    **{name.replace("_", ""): name for name in COLLECTIVES},
    **{"allgatherbase": "all_gather", "bcast": "broadcast", "a2a": "all_to_all"},
    **dict.fromkeys(("send", "recv", "p2p", "sendreceive"), "send_recv"),
}


def collective_name(text: str) -> str:
    """Return the collective of a usual spelling, such as AllReduce, all-reduce or alltoall.

    Raises
    ------
    ReproError
        The text names none of `COLLECTIVES`.

    Examples
    --------
    >>> collective_name("AllReduce"), collective_name("sendrecv")
    ('all_reduce', 'send_recv')
    """
    found = _SPELLINGS.get(re.sub(r"[-_ ]", "", text).lower().removesuffix("perf"))
    if found is None:
        raise ReproError(f"unknown collective {text!r}; choose from: {', '.join(COLLECTIVES)}")
    return found


def bus_factor(collective: str, ranks: ArrayLike) -> NDArray[Any]:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines them.

    The factor times a collective's size is the number of bytes that each rank's link must carry.

    Raises
    ------
    ReproError
        The collective is not in `COLLECTIVES`.
    """
    if collective not in _BUS_FACTORS:
        raise ReproError(
            f"unknown collective {collective!r}; choose from: {', '.join(COLLECTIVES)}"
        )
    return _BUS_FACTORS[collective](np.asarray(ranks, dtype=float))


def algbw_GBps(size_bytes: ArrayLike, time_s: ArrayLike) -> NDArray[Any]:
    """Return the algorithm bandwidth: size over time, in GB/s (1e9 B/s)."""
    bandwidth: NDArray[Any] = (
        np.asarray(size_bytes, dtype=float) / np.asarray(time_s, dtype=float) * 1e-9
    )
    return bandwidth


def busbw_GBps(
    collective: str, ranks: ArrayLike, size_bytes: ArrayLike, time_s: ArrayLike
) -> NDArray[Any]:
    """Return the bus bandwidth: algorithm bandwidth times `bus_factor`, in GB/s.

    Raises
    ------
    ReproError
        The collective is not in `COLLECTIVES`.
    """
    bandwidth: NDArray[Any] = bus_factor(collective, ranks) * algbw_GBps(size_bytes, time_s)
    return bandwidth
