"""Collectives over a partition's groups for weights and gradients, timed apart from compute passes.

FSDP2 uses them for its own groups; the levels above it use them too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.timers import Timers
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

from repro.catalog.parallel.partitions import Partition, hops
from repro.train.compression.coder import Coder
from repro.train.partition.groups import Groups
from repro.train.partition.quantised import from_integers, to_integers
from repro.train.phases import gathering_parameters, syncing_gradients


@dataclass(frozen=True)
class Collectives:
    """Collectives of a partition on this rank; `weights` encodes weights gathered for a pass."""

    partition: Partition
    groups: Groups
    timers: Timers
    weights: Coder | None = None

    def gather(self, whole: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Gather every rank's `part` of weights into `whole`, one after another."""
        with gathering_parameters(self.timers):
            if self.weights is not None:
                self._gather_encoded(whole, part, group, self.weights)
                return
            if not self.partition.int8_weights:
                dist.all_gather_into_tensor(whole, part, group=group)
                return
            own = to_integers(part.view(1, -1), bits=8)
            packed = own.new_empty(group.size(), own.shape[1])
            dist.all_gather_into_tensor(packed, own, group=group)
            whole.view(len(packed), -1).copy_(from_integers(packed, part.numel(), bits=8))

    def _gather_encoded(
        self, whole: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup, coder: Coder
    ) -> None:
        own = coder.encode(part)
        encoded = own.new_empty(group.size(), len(own))
        dist.all_gather_into_tensor(encoded, own, group=group)
        for found, one in zip(whole.view(len(encoded), -1), encoded, strict=True):
            found.copy_(coder.decode(one, found.shape, found.dtype))

    def gather_updated(self, part: torch.Tensor, ranks: int, stride: int) -> torch.Tensor:
        """Return all parts of a group's stepped weights, never as integers: errors would stay."""
        if ranks == 1:
            return part
        whole = part.new_empty(ranks * part.numel())
        with gathering_parameters(self.timers):
            dist.all_gather_into_tensor(whole, part, group=self.groups[ranks, stride])
        return whole

    def reduce(self, whole: torch.Tensor, ranks: int, stride: int) -> torch.Tensor:
        """Return this rank's part of the sum of a group's gradients."""
        if ranks == 1:
            return whole
        part = whole.new_empty(whole.numel() // ranks)
        with syncing_gradients(self.timers):
            if not self.partition.int4_gradients:
                dist.reduce_scatter_tensor(part, whole, group=self.groups[ranks, stride])
            else:
                part.copy_(self._reduce_integers(whole, ranks, stride))
        return part

    def _reduce_integers(self, whole: torch.Tensor, ranks: int, stride: int) -> torch.Tensor:
        """Sum parts among corresponding ranks of this node, then over nodes.

        Ranks of a group are numbered as their nodes are: part o k + i is that of rank i of k on
        node o. The two hops have 4 bits each, with 32 bits in between (qgZ).
        """
        parts = whole.view(ranks, -1)
        for along, apart, rows in hops(self.partition, ranks, stride):
            if along == 1:
                continue
            lines = parts.view(rows, along, -1).transpose(0, 1).reshape(along, -1)
            sent = to_integers(lines, bits=4)
            got = torch.empty_like(sent)
            dist.all_to_all_single(got, sent, group=self.groups[along, apart])
            parts = from_integers(got, lines.shape[1], bits=4).sum(0).view(rows, -1)
        return parts.view(-1)


class _Allocating:
    """Buffers of FSDP2's collectives, each for one call."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives

    def allocate(
        self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class FsdpAllGather(_Allocating, AllGather):
    """All-gather for FSDP2 of a unit's weights, from all of their shards or from second copies."""

    def __call__(  # noqa: D102, the class describes it
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        self._collectives.gather(output_tensor, input_tensor, group)


class FsdpReduceScatter(_Allocating, ReduceScatter):
    """Reduce-scatter for FSDP2 of a unit's gradients, which it sums."""

    def __call__(  # noqa: D102, the class describes it
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        assert op == dist.ReduceOp.SUM, op
        output_tensor.copy_(self._collectives.reduce(input_tensor, group.size(), 1))
