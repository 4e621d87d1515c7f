"""Lossless codec: bytes of the same place of all numbers together, then zstd."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from repro.train.compression.interface import Coding, library

_FP32 = 4
# Faster levels compress as well, because only the exponents' byte can be compressed.
_LEVEL = 1


@dataclass(frozen=True)
class ShuffledZstd(Coding):
    """Byte shuffle as in Blosc (Alted, CiSE 2010), then zstd."""

    zstandard: Any = field(
        default_factory=partial(library, "zstandard", "zstd"), repr=False, compare=False
    )

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        return torch.zeros_like(values)

    def _encode(self, flat: torch.Tensor) -> torch.Tensor:
        by_place = flat.cpu().numpy().view(np.uint8).reshape(-1, _FP32).T
        coded = self.zstandard.ZstdCompressor(level=_LEVEL).compress(by_place.tobytes())
        return torch.frombuffer(bytearray(coded), dtype=torch.uint8).to(flat.device)

    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        coded = encoded.cpu().numpy().tobytes()
        by_place = self.zstandard.ZstdDecompressor().decompress(coded)
        shuffled = np.frombuffer(by_place, np.uint8).reshape(_FP32, elements)
        numbers = np.array(shuffled.T, order="C").view(np.float32)
        return torch.from_numpy(numbers.reshape(-1)).to(encoded.device)
