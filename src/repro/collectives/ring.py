"""A ring reduce-scatter out of sends and receives, for gloo.

Gloo's own reduces everything everywhere and keeps a part: it moves the 2 (n-1)/n S bytes of an
all-reduce. NCCL's ring, and this one, move (n-1)/n S.
"""

from typing import Any

import torch
import torch.distributed as dist

_TAG = 7


def ring_reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    op: Any = dist.ReduceOp.SUM,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> None:
    """Sum the inputs of all ranks, and give each rank the part with its number.

    In place of `torch.distributed.reduce_scatter_tensor`. `output` may be this rank's part of
    `input`, whose other parts stay as they are. In each of n - 1 steps a rank hands the part that
    it summed last to the next rank.

    Parameters
    ----------
    output, input : Tensor
        n times as many elements in `input`, contiguous.
    op
        `SUM`, or `AVG` for the mean.

    Raises
    ------
    ValueError
        Another `op`, or `async_op`, which this has not.
    """
    if async_op or op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"a ring reduce-scatter with op={op}, async_op={async_op}")
    ring = group or dist.group.WORLD
    assert ring is not None
    rank, ranks = ring.rank(), ring.size()
    parts = input.view(ranks, -1)
    summed = parts[(rank - 1) % ranks]
    # Two buffers take turns: one is sent while the other is received into.
    buffers = [torch.empty_like(summed) for _ in range(min(2, ranks - 1))]
    for step in range(ranks - 1):
        received = buffers[step % 2]
        sending = ring.send([summed], (rank + 1) % ranks, _TAG)
        ring.recv([received], (rank - 1) % ranks, _TAG).wait()
        sending.wait()
        summed = received.add_(parts[(rank - step - 2) % ranks])
    output.view(-1).copy_(summed)
    if op == dist.ReduceOp.AVG:
        output.div_(ranks)
