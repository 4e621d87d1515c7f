"""Interface of every codec: numbers to bytes and back, with a bound of the error.

`encoded_bytes` of `repro.catalog.parallel.encoded_volumes` returns the encoded size without a
codec.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import torch

from repro.errors import ReproError
from repro.train.partition.quantised import check_numbers

# Numbers smaller than this may become zero, because their scales would be subnormal.
TINY = 512 * torch.finfo(torch.float32).tiny


class Coding(ABC):
    """Codec at one setting, from numbers to bytes.

    Numbers are encoded as fp32, in the order of their tensor. If any of them is not finite, some
    decoded ones are not either, and the error bounds do not hold.
    """

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes of a tensor of any shape.

        Raises
        ------
        ReproError
            The tensor is no floating-point type of at most 32 bits.
        """
        check_numbers(values, "compressed")
        flat = values.detach().reshape(-1).float()
        return self._encode(flat) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)

    def decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        """Return so many fp32 numbers from the result of `encode`."""
        if not elements:
            return encoded.new_empty(0, dtype=torch.float32)
        return self._decode(encoded, elements)

    @abstractmethod
    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        """Return the largest possible error of each of these finite fp32 numbers (elements,)."""

    @abstractmethod
    def _encode(self, flat: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor: ...


def library(name: str, codec: str) -> Any:
    """Import a codec's library.

    Raises
    ------
    ReproError
        The library is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ReproError(
            f"codec {codec} needs {name}, which is not installed: "
            "`pip install 'repro[compression]'`, or choose codec integers, fp8 or top-k"
        ) from None
