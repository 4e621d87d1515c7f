"""Collectives as calls of torch.distributed, with test data that verifies their results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

# Test data are integers whose sums do not exceed this: bf16 represents them exactly, so that every
# order of summation gives the same result.
_LARGEST_SUM = 256
_CHUNK_ELEMENTS = 1 << 22
# Collectives whose size is that of all ranks' data together.
_SHARDED = ("all_gather", "reduce_scatter", "all_to_all")

Fill = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """A collective of one size, ready to be called on this rank.

    Attributes
    ----------
    size_bytes
        Size by nccl-tests' definition: of all ranks' data for those that gather or scatter.
    call
        Runs the collective; on a GPU it may return before the end.
    input, output
        Buffers of this rank; the same or overlapping ones in place.
    data, expected
        Functions of element positions. `data` gives test data for `input` that differ by rank and
        element, `expected` the `output` of one call on them; None if this rank gets no output.
    """

    size_bytes: int
    call: Callable[[], object]
    input: torch.Tensor
    output: torch.Tensor
    data: Fill
    expected: Fill | None

    def wrong_elements(self) -> int:
        """Call the collective once on test data, and count wrong elements of this rank's output."""
        for chunk, positions in _chunks(self.input):
            chunk.copy_(self.data(positions))
        self.call()
        if self.expected is None:
            return 0
        return sum(
            int((chunk != self.expected(positions).to(chunk.dtype)).sum())
            for chunk, positions in _chunks(self.output)
        )

    def clear(self) -> None:
        """Set the input to zeros, which do not overflow however often they are summed."""
        self.input.zero_()


# Input, output, call, and expected output.
_Prepared = tuple[torch.Tensor, torch.Tensor, Callable[[], object], Fill | None]


def prepare(
    collective: str,
    requested_bytes: int,
    in_place: bool,
    group: dist.ProcessGroup,
    dtype: torch.dtype,
    device: torch.device,
) -> Operation:
    """Allocate the buffers of a collective on this rank.

    Parameters
    ----------
    collective : str
        A key of `repro.collectives.definitions.PLACES`.
    requested_bytes : int
        Size, rounded up to full elements; to full elements per rank if the data are sharded.
    in_place : bool
        One of the collective's `PLACES`.
    """
    shards = group.size() if collective in _SHARDED else 1
    count = -(-requested_bytes // (shards * dtype.itemsize)) * shards
    full = torch.zeros(count, dtype=dtype, device=device)
    input, output, call, expected = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "all_to_all": _all_to_all,
        "send_recv": _send_recv,
    }[collective](full, in_place, group)
    return Operation(full.nbytes, call, input, output, _data_of(group.rank(), group), expected)


def _all_reduce(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    output, call = _on_copy(input, in_place, lambda data: dist.all_reduce(data, group=group))
    return input, output, call, _sum_of_all(group)


def _reduce(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    output, call = _on_copy(
        input, in_place, lambda data: dist.reduce(data, group=group, group_dst=0)
    )
    return input, output, call, _sum_of_all(group) if group.rank() == 0 else None


def _broadcast(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    output, call = _on_copy(
        input,
        in_place,
        lambda data: dist.broadcast(data, group=group, group_src=0),
        # Other ranks' data are overwritten, and need no copy.
        copies=group.rank() == 0,
    )
    return input, output, call, _data_of(0, group)


def _on_copy(
    input: torch.Tensor,
    in_place: bool,
    collective: Callable[[torch.Tensor], object],
    copies: bool = True,
) -> tuple[torch.Tensor, Callable[[], None]]:
    """Return output and call of a collective that torch has in place only, here or on a copy."""
    output = input if in_place else torch.zeros_like(input)

    def call() -> None:
        if copies and not in_place:
            output.copy_(input)
        collective(output)

    return output, call


def _all_gather(output: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    count = output.numel() // group.size()
    input = _shard(output, group) if in_place else torch.zeros_like(output[:count])
    return (
        input,
        output,
        lambda: dist.all_gather_into_tensor(output, input, group=group),
        lambda at: _pattern(at % count, at // count, group),
    )


def _reduce_scatter(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    shard = _shard(input, group)
    output = shard if in_place else torch.zeros_like(shard)
    first, total = group.rank() * shard.numel(), _sum_of_all(group)
    return (
        input,
        output,
        lambda: dist.reduce_scatter_tensor(output, input, group=group),
        lambda at: total(at + first),
    )


def _all_to_all(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    output, count = torch.zeros_like(input), input.numel() // group.size()
    first = group.rank() * count
    return (
        input,
        output,
        lambda: dist.all_to_all_single(output, input, group=group),
        lambda at: _pattern(first + at % count, at // count, group),
    )


def _send_recv(input: torch.Tensor, in_place: bool, group: dist.ProcessGroup) -> _Prepared:
    """Prepare a send to the next rank with a concurrent receive from the previous one."""
    output, rank, ranks = torch.zeros_like(input), group.rank(), group.size()
    exchange = [
        dist.P2POp(dist.isend, input, group=group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, output, group=group, group_peer=(rank - 1) % ranks),
    ]

    def call() -> None:
        for request in dist.batch_isend_irecv(exchange):
            request.wait()

    return input, output, call, _data_of((rank - 1) % ranks, group)


def _shard(full: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return full.chunk(group.size())[group.rank()]


def _chunks(tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield chunks of a tensor with their positions, which need more memory than the data."""
    for first in range(0, tensor.numel(), _CHUNK_ELEMENTS):
        chunk = tensor[first : first + _CHUNK_ELEMENTS]
        yield chunk, torch.arange(first, first + chunk.numel(), device=tensor.device)


def _pattern(
    position: torch.Tensor, rank: torch.Tensor | int, group: dist.ProcessGroup
) -> torch.Tensor:
    """Return the test data of a rank at positions."""
    return (position + rank) % _period(group)


def _period(group: dist.ProcessGroup) -> int:
    """Return the count of different numbers in the data; for up to 16 ranks, at least as many."""
    return max(2, _LARGEST_SUM // group.size() + 1)


def _data_of(rank: int, group: dist.ProcessGroup) -> Fill:
    return lambda at: _pattern(at, rank, group)


def _sum_of_all(group: dist.ProcessGroup) -> Fill:
    """Return the sum of all ranks' test data, by position."""
    period = _period(group)
    sums = torch.tensor(
        [sum((first + rank) % period for rank in range(group.size())) for first in range(period)]
    )
    return lambda at: sums.to(at.device)[at % period]
