"""Collectives as calls of torch.distributed, with data that shows whether they were right."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Data are whole numbers whose sums do not exceed this, so that every order of summing gives the
# same in half precision too: bf16 has all of them up to it.
_LARGEST_SUM = 256
_PIECE = 1 << 22
# Whose size is that of all ranks' data together.
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")

Fill = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """A collective on one size, ready to be called on this rank.

    Attributes
    ----------
    size_bytes
        By nccl-tests' definition: of all ranks' data for the three that gather or scatter.
    call
        Run it; on a device it may return before it is over.
    given, result
        What this rank gives and gets, the same or overlapping in place.
    data, expected
        By positions of `given`, data that tells ranks and elements apart; and by positions of
        `result`, what one call must make of it. None where a rank gets nothing.
    """

    size_bytes: int
    call: Callable[[], object]
    given: torch.Tensor
    result: torch.Tensor
    data: Fill
    expected: Fill | None

    def wrong_elements(self) -> int:
        """Call it once on data, and count what of this rank's result is not as it must be."""
        for piece, positions in _pieces(self.given):
            piece.copy_(self.data(positions))
        self.call()
        if self.expected is None:
            return 0
        return sum(
            int((piece != self.expected(positions).to(piece.dtype)).sum())
            for piece, positions in _pieces(self.result)
        )

    def clear(self) -> None:
        """Give zeros, which stay zeros however often they are summed."""
        self.given.zero_()


# What a rank gives and gets, the call, and what the call must make of the data.
_Prepared = tuple[torch.Tensor, torch.Tensor, Callable[[], object], Fill | None]


def prepare(
    collective: str,
    asked_bytes: int,
    in_place: bool,
    group: dist.ProcessGroup,
    dtype: torch.dtype,
    device: torch.device,
) -> Operation:
    """Allocate what a collective needs on this rank.

    Parameters
    ----------
    collective : str
        A key of `repro.collectives.definitions.PLACES`.
    asked_bytes : int
        The size; rounded up to a whole number of elements, of each rank where ranks have shares.
    in_place : bool
        One of the collective's `PLACES`.
    """
    parts = group.size() if collective in _SHARED else 1
    count = -(-asked_bytes // (parts * dtype.itemsize)) * parts
    whole = torch.zeros(count, dtype=dtype, device=device)
    given, result, call, expected = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "all_to_all": _all_to_all,
        "send_recv": _send_recv,
    }[collective](whole, in_place, group)
    return Operation(whole.nbytes, call, given, result, _given_by(group.rank(), group), expected)


def _all_reduce(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    result, call = _on_copy(given, in_place, lambda data: dist.all_reduce(data, group=group))
    return given, result, call, _summed(group)


def _reduce(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    result, call = _on_copy(
        given, in_place, lambda data: dist.reduce(data, group=group, group_dst=0)
    )
    return given, result, call, _summed(group) if group.rank() == 0 else None


def _broadcast(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    result, call = _on_copy(
        given,
        in_place,
        lambda data: dist.broadcast(data, group=group, group_src=0),
        # What a broadcast overwrites needs no copy.
        copies=group.rank() == 0,
    )
    return given, result, call, _given_by(0, group)


def _on_copy(
    given: torch.Tensor,
    in_place: bool,
    collective: Callable[[torch.Tensor], object],
    copies: bool = True,
) -> tuple[torch.Tensor, Callable[[], None]]:
    """The result of what torch has in place only, and the call: there, or on a copy."""
    result = given if in_place else torch.zeros_like(given)

    def call() -> None:
        if copies and not in_place:
            result.copy_(given)
        collective(result)

    return result, call


def _all_gather(result: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    share = result.numel() // group.size()
    given = _share(result, group) if in_place else torch.zeros_like(result[:share])
    return (
        given,
        result,
        lambda: dist.all_gather_into_tensor(result, given, group=group),
        lambda at: _pattern(at % share, at // share, group),
    )


def _reduce_scatter(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    mine = _share(given, group)
    result = mine if in_place else torch.zeros_like(mine)
    first, summed = group.rank() * mine.numel(), _summed(group)
    return (
        given,
        result,
        lambda: dist.reduce_scatter_tensor(result, given, group=group),
        lambda at: summed(at + first),
    )


def _all_to_all(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    result, share = torch.zeros_like(given), given.numel() // group.size()
    first = group.rank() * share
    return (
        given,
        result,
        lambda: dist.all_to_all_single(result, given, group=group),
        lambda at: _pattern(first + at % share, at // share, group),
    )


def _send_recv(given: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    """To the next rank, and from the one before at the same time."""
    result, rank, ranks = torch.zeros_like(given), group.rank(), group.size()
    exchange = [
        dist.P2POp(dist.isend, given, group=group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, result, group=group, group_peer=(rank - 1) % ranks),
    ]

    def call() -> None:
        for request in dist.batch_isend_irecv(exchange):
            request.wait()

    return given, result, call, _given_by((rank - 1) % ranks, group)


def _share(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's part."""
    return whole.chunk(group.size())[group.rank()]


def _pieces(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """A tensor in pieces with their positions, whose numbers take more memory than the data."""
    for first in range(0, tensor.numel(), _PIECE):
        piece = tensor[first : first + _PIECE]
        yield piece, torch.arange(first, first + piece.numel(), device=tensor.device)


def _pattern(
    position: torch.Tensor, rank: torch.Tensor | int, group: dist.ProcessGroup
) -> torch.Tensor:
    """What a rank gives at a position."""
    return (position + rank) % _period(group)


def _period(group: dist.ProcessGroup) -> int:
    """Different numbers in the data: no fewer than ranks, up to 16 of them."""
    return max(2, _LARGEST_SUM // group.size() + 1)


def _given_by(rank: int, group: dist.ProcessGroup) -> Fill:
    return lambda at: _pattern(at, rank, group)


def _summed(group: dist.ProcessGroup) -> Fill:
    """The sum over all ranks of what they give at a position."""
    period = _period(group)
    sums = torch.tensor(
        [sum((first + rank) % period for rank in range(group.size())) for first in range(period)]
    )
    return lambda at: sums.to(at.device)[at % period]
