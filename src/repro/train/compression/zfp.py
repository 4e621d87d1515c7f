"""ZFP (Lindstrom, TVCG 2014) of numbers in a row: blocks of four with a common exponent.

A block's bit planes are coded from the highest on. The rows of the inverse transform add up to
15/4. So with p planes no number is off by more than 20/2^p of the block's largest.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from repro.catalog.parallel.encoded_volumes import ZFP_BLOCK, ZFP_OVERHEAD_BITS
from repro.train.compression.interface import Coding, library

# ZFP aligns numbers to their block's exponent as integers of 31 bits, and its transforms round.
_ALIGNED = 2.0**-24
# A block of smaller numbers only would have an infinite scale, so they are zeros here.
_SMALLEST = 2.0**-96


@dataclass(frozen=True)
class _Zfp(Coding):
    """Headerless streams with one more byte, which says whether all numbers are finite.

    ZFP cannot encode others.
    """

    zfpy: Any = field(
        default_factory=partial(library, "zfpy", "zfp"), repr=False, compare=False, kw_only=True
    )

    def _mode(self) -> dict[str, float]:
        raise NotImplementedError

    def _encode(self, flat: torch.Tensor) -> torch.Tensor:
        finite = bool(flat.isfinite().all())
        numbers = flat.where(flat.abs() >= _SMALLEST, 0.0) if finite else torch.zeros_like(flat)
        stream = self.zfpy.compress_numpy(numbers.cpu().numpy(), write_header=False, **self._mode())
        coded = torch.frombuffer(bytearray(stream + bytes([finite])), dtype=torch.uint8)
        return coded.to(flat.device)

    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        coded = encoded.cpu().numpy()
        if not coded[-1]:
            return torch.full((elements,), torch.nan, device=encoded.device)
        numbers = self.zfpy._decompress(
            coded[:-1].tobytes(), self.zfpy.type_float, (elements,), **self._mode()
        )
        return torch.from_numpy(numbers).to(encoded.device)


@dataclass(frozen=True)
class ZfpRate(_Zfp):
    """ZFP with a fixed rate of `bits` per number."""

    bits: float

    def _mode(self) -> dict[str, float]:
        return {"rate": self.bits}

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        planes = max(0, int((ZFP_BLOCK * self.bits - ZFP_OVERHEAD_BITS) // ZFP_BLOCK))
        return _largest(values) * (20 * 2.0**-planes + _ALIGNED) + _SMALLEST


@dataclass(frozen=True)
class ZfpAccuracy(_Zfp):
    """ZFP with as few bits as keep every error within `tolerance`."""

    tolerance: float

    def _mode(self) -> dict[str, float]:
        return {"tolerance": self.tolerance}

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        return self.tolerance + _largest(values) * _ALIGNED + _SMALLEST


def _largest(values: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude of each number's block."""
    blocks = functional.pad(values.abs(), (0, -len(values) % ZFP_BLOCK)).view(-1, ZFP_BLOCK)
    return blocks.amax(1).repeat_interleave(ZFP_BLOCK)[: len(values)]
