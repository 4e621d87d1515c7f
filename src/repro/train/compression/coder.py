"""Encode and decode messages of a run, as computing that is timed and paced by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from megatron.core.timers import Timers

from repro.catalog.parallel.codecs import Codec
from repro.train.compression.codecs import coding_of
from repro.train.compression.interface import Coding
from repro.train.phases import decoding, encoding


@dataclass(frozen=True)
class Coder:
    """A codec at work in a run; messages of fewer than `smallest_bytes` are not for it."""

    codec: Codec
    coding: Coding
    timers: Timers
    smallest_bytes: int = 0

    def takes(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Whether such a message is encoded; the same at both of its ends."""
        return dtype.is_floating_point and prod(shape) * dtype.itemsize >= self.smallest_bytes

    def encode(self, values: torch.Tensor, lost: torch.Tensor | None = None) -> torch.Tensor:
        """A message. With `lost`, as many fp32 numbers, these are added to it, and are what
        encoding loses of it afterwards (error feedback)."""
        with encoding(self.timers):
            if lost is None:
                return self.coding.encode(values)
            whole = values.float() + lost
            encoded = self.coding.encode(whole)
            missed = whole - self.coding.decode(encoded, whole.numel()).view_as(whole)
            # What is not finite would never leave again.
            lost.copy_(missed.nan_to_num(0.0, 0.0, 0.0))
            return encoded

    def decode(
        self, encoded: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A message's numbers."""
        with decoding(self.timers):
            return self.coding.decode(encoded, prod(shape)).view(*shape).to(dtype)


def coder_of(codec: Codec, timers: Timers, smallest_bytes: int = 0) -> Coder:
    """The coder of a description.

    Raises
    ------
    ReproError
        Its library is not installed.
    """
    return Coder(codec, coding_of(codec), timers, smallest_bytes)
