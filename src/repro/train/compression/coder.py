"""Encoding and decoding of a run's messages, as compute with its own timers and throttle."""

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
    """Codec of a run; messages smaller than `smallest_bytes` are not encoded."""

    codec: Codec
    coding: Coding
    timers: Timers
    smallest_bytes: int = 0

    def takes(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Test whether such a message is encoded; the same at both of its ends."""
        return dtype.is_floating_point and prod(shape) * dtype.itemsize >= self.smallest_bytes

    def encode(self, values: torch.Tensor, lost: torch.Tensor | None = None) -> torch.Tensor:
        """Encode a message.

        With `lost`, as many fp32 numbers, add these first, and store the loss of this encoding in
        them afterwards (error feedback).
        """
        with encoding(self.timers):
            if lost is None:
                return self.coding.encode(values)
            whole = values.float() + lost
            encoded = self.coding.encode(whole)
            missed = whole - self.coding.decode(encoded, whole.numel()).view_as(whole)
            # Numbers that are not finite would stay in the feedback forever.
            lost.copy_(missed.nan_to_num(0.0, 0.0, 0.0))
            return encoded

    def decode(
        self, encoded: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Decode a message's numbers."""
        with decoding(self.timers):
            return self.coding.decode(encoded, prod(shape)).view(*shape).to(dtype)


def coder_of(codec: Codec, timers: Timers, smallest_bytes: int = 0) -> Coder:
    """Return the coder of a description.

    Raises
    ------
    ReproError
        The codec's library is not installed.
    """
    return Coder(codec, coding_of(codec), timers, smallest_bytes)
