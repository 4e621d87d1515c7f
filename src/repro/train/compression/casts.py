"""Codecs with fewer bits and a scale: integers by block, and 8-bit floating point."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from repro.catalog.parallel.partitions import BLOCK, SCALE_BYTES
from repro.train.compression.interface import TINY, Coding
from repro.train.partition.quantised import from_integers, to_integers

_E4M3 = torch.float8_e4m3fn
# With three bits of mantissa, half of the last place is at most a sixteenth of the number.
_RELATIVE = 2.0**-4
# Half of the smallest subnormal number.
_SUBNORMAL = 2.0**-10


@dataclass(frozen=True)
class Integers(Coding):
    """Integers of 8 or 4 bits with a scale for each block (`repro.train.partition.quantised`)."""

    bits: Literal[8, 4]

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        blocks = functional.pad(values.abs(), (0, -len(values) % BLOCK)).view(-1, BLOCK)
        scales: torch.Tensor = blocks.amax(1) / (2 ** (self.bits - 1) - 1)
        half: torch.Tensor = scales / 2 * (1 + 1e-5) + TINY
        return half.repeat_interleave(BLOCK)[: len(values)]

    def _encode(self, flat: torch.Tensor) -> torch.Tensor:
        return to_integers(flat.view(1, -1), self.bits)[0]

    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        return from_integers(encoded.view(1, -1), elements, self.bits)[0]


@dataclass(frozen=True)
class Fp8(Coding):
    """E4M3 (Micikevicius et al., 2022) with one scale, which maps the largest number to E4M3's."""

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        scale = values.abs().max() / torch.finfo(_E4M3).max
        return (values.abs() * _RELATIVE + scale * _SUBNORMAL) * (1 + 1e-5) + TINY

    def _encode(self, flat: torch.Tensor) -> torch.Tensor:
        scale = flat.abs().max() / torch.finfo(_E4M3).max
        # All zeros have scale 0, by which nothing can be divided.
        small = (flat / scale.clamp(min=torch.finfo(torch.float32).tiny)).to(_E4M3)
        return torch.cat([scale.view(1).view(torch.uint8), small.view(torch.uint8)])

    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        scale = encoded[:SCALE_BYTES].clone().view(torch.float32)
        return encoded[SCALE_BYTES:].view(_E4M3).float() * scale
