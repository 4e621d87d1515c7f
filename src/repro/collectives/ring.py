"""Ring reduce-scatter and all-gather made of sends and receives, for gloo.

Gloo's reduce-scatter is an all-reduce of which each rank keeps a part: it moves 2 (n-1)/n S bytes,
while NCCL's ring and this one move (n-1)/n S. Gloo's all-gather moves as many bytes as this one but
copies them, which costs too much CPU time of an emulated GPU.
"""

from typing import Any

import torch
import torch.distributed as dist

from repro.observe.communication_log import logged_as

# Minimum size and maximum number of the segments of a part. One segment is added while another is
# on the wire.
_SEGMENT_BYTES, _MOST_SEGMENTS = 64 * 1024, 4
# Tag of the first segment.
_TAG = 7


@logged_as("reduce_scatter")
def ring_reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """Sum the inputs of all ranks, and scatter the parts of the sum to the ranks.

    Replaces `torch.distributed.reduce_scatter_tensor`. `output` may be this rank's part of `input`,
    whose other parts are not changed. In each of n - 1 steps, a rank sends the part that it summed
    last to the next rank.

    Parameters
    ----------
    output, input : Tensor
        Contiguous; `input` has n times as many elements.
    op
        `SUM`, or `AVG` for the mean.

    Raises
    ------
    ValueError
        `op` is another operation, or `async_op` is true.
    """
    if async_op or op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(
            f"ring reduce-scatter with op={op}, async_op={async_op}; fix: use op=SUM or AVG, "
            "async_op=False"
        )
    ring = _ring(group)
    rank, ranks = ring.rank(), ring.size()
    parts = [_segments(part) for part in input.view(ranks, -1)]
    # Two buffers alternate: one is sent while the other receives.
    buffers = [_segments(torch.empty_like(output)) for _ in range(2)]
    sums = list(parts[(rank - 1) % ranks])
    if ranks > 1:
        receives = [_receive(ring, part, number) for number, part in enumerate(buffers[0])]
        sends = [_send(ring, part, number) for number, part in enumerate(sums)]
    for step in range(ranks - 1):
        last = step == ranks - 2
        added = parts[(rank - step - 2) % ranks]
        for segment in range(len(sums)):
            receives[segment].wait()
            sends[segment].wait()
            if not last:
                # The previous send from this buffer has completed.
                receives[segment] = _receive(ring, buffers[(step + 1) % 2][segment], segment)
            sums[segment] = buffers[step % 2][segment].add_(added[segment])
            if not last:
                sends[segment] = _send(ring, sums[segment], segment)
    for result, total in zip(_segments(output), sums, strict=True):
        result.copy_(total)
    if op == dist.ReduceOp.AVG:
        output.div_(ranks)


@logged_as("all_gather")
def ring_all_gather(
    output: torch.Tensor,
    input: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """Gather the inputs of all ranks on every rank, in the order of ranks.

    Replaces `torch.distributed.all_gather_into_tensor`. `input` may be this rank's part of
    `output`. In each of n - 1 steps, a rank sends the part that it received last to the next rank.

    Parameters
    ----------
    output, input : Tensor
        Contiguous; `output` has n times as many elements.

    Raises
    ------
    ValueError
        `async_op` is true.
    """
    if async_op:
        raise ValueError("ring all-gather with async_op=True; fix: use async_op=False")
    ring = _ring(group)
    rank, ranks = ring.rank(), ring.size()
    parts = output.view(ranks, -1)
    if parts[rank].data_ptr() != input.data_ptr():
        parts[rank].copy_(input.view(-1))
    for step in range(ranks - 1):
        receive = _receive(ring, parts[(rank - step - 1) % ranks])
        send = _send(ring, parts[(rank - step) % ranks])
        receive.wait()
        send.wait()


def _ring(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    ring = group or dist.group.WORLD
    assert ring is not None
    return ring


def _segments(part: torch.Tensor) -> tuple[torch.Tensor, ...]:
    count = min(_MOST_SEGMENTS, max(1, part.nbytes // _SEGMENT_BYTES))
    segments: tuple[torch.Tensor, ...] = part.view(-1).tensor_split(count)
    return segments


def _send(ring: dist.ProcessGroup, part: torch.Tensor, segment: int = 0) -> dist.Work:
    """Start a send to the next rank; each segment has its own tag."""
    return ring.send([part], (ring.rank() + 1) % ring.size(), _TAG + segment)


def _receive(ring: dist.ProcessGroup, part: torch.Tensor, segment: int = 0) -> dist.Work:
    """Start a receive from the previous rank."""
    return ring.recv([part], (ring.rank() - 1) % ring.size(), _TAG + segment)
