"""Gradients as a product of two thin matrices (Vogels et al., NeurIPS 2019).

It follows torch's `batched_powerSGD_hook`, which supports torch's own data parallelism only. A
buffer, padded with zeros, is a square matrix M. From the last iteration's R each rank computes M R,
whose sum is made orthonormal: L. The sum of Mᵀ L is the next R, and L Rᵀ approximates the sum of M.
Ranks send thin matrices only.
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from megatron.core.timers import Timers
from torch.nn import functional

from repro.catalog.parallel.encoded_volumes import square_side
from repro.train.phases import decoding, encoding


@dataclass
class PowerSgd:
    """Sums of rank `rank`; with `feeds_back` their error is added in the next iteration.

    Each summed buffer has its own R and error, keyed by its address and length.
    """

    rank: int
    feeds_back: bool
    timers: Timers
    _right: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    _lost: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def all_reduce(self, gradients: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Replace a contiguous tensor by the approximation of its sum over a group."""
        flat, width = gradients.view(-1), square_side(gradients.numel())
        key = gradients.data_ptr(), gradients.numel()
        with encoding(self.timers):
            whole = functional.pad(flat.float(), (0, width**2 - flat.numel())).view(width, width)
            if key in self._lost:
                whole += self._lost[key]
            if key not in self._right:
                # All ranks draw the same.
                generator = torch.Generator(flat.device).manual_seed(width)
                self._right[key] = torch.randn(
                    width, self.rank, generator=generator, device=flat.device
                )
            left = whole @ torch.linalg.qr(self._right[key]).Q
        _sum(left, group)
        with encoding(self.timers):
            left = torch.linalg.qr(left).Q
            right = whole.T @ left
        _sum(right, group)
        with decoding(self.timers):
            total = left @ right.T
            # Numbers that are not finite would stay in the feedback forever.
            self._right[key] = right.nan_to_num(0.0, 0.0, 0.0)
            if self.feeds_back:
                self._lost[key] = (whole - total / group.size()).nan_to_num(0.0, 0.0, 0.0)
            flat.copy_(total.view(-1)[: flat.numel()])


def _sum(thin: torch.Tensor, group: dist.ProcessGroup) -> None:
    # Within a batch of calls, torch.distributed would delay its own call to the end of the batch.
    group.allreduce([thin]).wait()
