"""Hooks that encode the messages of training by their parallel direction.

Megatron-Core sums gradients and activations by `torch.distributed.all_reduce`, which is replaced
during a run; messages between pipeline stages pass `repro.train.megatron.communicator`. Norms,
losses, barriers and other small messages stay as they are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.timers import Timers

from repro.catalog.parallel.codecs import Compression, Direction
from repro.errors import ReproError
from repro.observe.transfers import role_of
from repro.train.compression.coder import Coder, coder_of
from repro.train.compression.power_sgd import PowerSgd
from repro.train.compression.ring import EncodedRing
from repro.train.phases import tensor_all_reduce
from repro.train.records import TrainingRun

# Parallel direction of a group's sums, by the group's role.
_DIRECTIONS: dict[str, Direction] = {"data": "data", "embedding": "data", "tensor": "tensor"}


def check_compression(run: TrainingRun) -> None:
    """Check that all ranks encode alike, and that hooks see the messages; all ranks call it.

    Raises
    ------
    ReproError
        The check fails; the message has the fix.
    """
    own = "none" if run.compression is None else run.compression.model_dump_json()
    said: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(said, own)
    for rank, other in enumerate(said):
        if other != said[0]:
            raise ReproError(
                f"ranks disagree on compression: rank {rank} has {other}, rank 0 has {said[0]}; "
                "fix: give all of them the same"
            )
    if run.compression is None:
        return
    has, spreads = set(run.compression.by_direction()), run.partition is not None
    if has - {"weights"} if spreads else has & {"weights"}:
        raise ReproError(
            f"compression {run.compression.label} has codecs for {', '.join(sorted(has))}; with a "
            "partition it can have one for weights only, and without one for none"
        )
    if has and run.partition is not None and run.partition.int8_weights:
        raise ReproError(
            "int8_weights is True, and compression has a codec for weights; choose one of them"
        )
    for name, value, wanted in (
        ("distributed_optimizer", run.distributed_optimizer, False),
        ("sequence_parallel", run.sequence_parallel, False),
        ("expert_parallel", run.expert_parallel, 1),
        # NCCL sums gradients within a batch of calls, which cannot contain a ring.
        ("backend", dist.get_backend(), "gloo"),
    ):
        if value != wanted:
            raise ReproError(
                f"{name} is {value}; only all-reduces and messages between stages are compressed; "
                f"fix: {wanted}"
            )


class Compressor:
    """Compressor of a run's messages on this rank.

    Attributes
    ----------
    pipeline, weights
        Coders of messages between stages, and of gathered weights; None: they are not encoded.
    """

    def __init__(self, compression: Compression, timers: Timers) -> None:
        self._timers, self._smallest_bytes = timers, compression.smallest_bytes
        self._sums: dict[Direction, EncodedRing | PowerSgd] = {}
        coders: dict[Direction, Coder] = {}
        for direction, codec in compression.by_direction().items():
            feeds_back = direction == "data" and compression.error_feedback
            if codec.rank:
                self._sums[direction] = PowerSgd(codec.rank, feeds_back, timers)
                continue
            coders[direction] = coder_of(codec, timers, compression.smallest_bytes)
            if direction in ("data", "tensor"):
                self._sums[direction] = EncodedRing(coders[direction], feeds_back)
        self.pipeline, self.weights = coders.get("pipeline"), coders.get("weights")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Encode all-reduces within this scope."""
        encoding = partial(self._all_reduce, dist.all_reduce)
        with mock.patch.object(dist, "all_reduce", encoding):
            yield

    def _all_reduce(
        self,
        plain: Callable[..., Any],
        tensor: torch.Tensor,
        op: Any = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> Any:
        role = "world" if group is None else role_of(group.group_desc, "all_reduce")
        direction = _DIRECTIONS.get(role)
        if group is None or direction is None or group.size() == 1:
            return plain(tensor, op, group, async_op)
        sums = self._sums.get(direction)
        large = tensor.is_floating_point() and tensor.nbytes >= self._smallest_bytes
        # Tensor-parallel ranks sum in the middle of a compute pass.
        with tensor_all_reduce(self._timers) if direction == "tensor" else nullcontext():
            if sums and large and op == dist.ReduceOp.SUM:
                sums.all_reduce(tensor, group)
            else:
                plain(tensor, op, group)
        return _Done() if async_op else None


class _Done:
    """Request of a call that is complete."""

    def wait(self) -> None:
        """Return at once."""
