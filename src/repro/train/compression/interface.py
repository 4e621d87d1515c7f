"""What every codec does: numbers to bytes and back, and how far off they are then.

How many bytes they become is known without any: `encoded_bytes` of
`repro.catalog.parallel.encoded_volumes`.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

import torch

from repro.errors import ReproError
from repro.train.partition.quantised import check_numbers

# Numbers smaller than this may become zero: scales of them would be no normal numbers.
TINY = 512 * torch.finfo(torch.float32).tiny


class Coding(ABC):
    """Numbers as bytes, at one setting.

    Numbers are encoded as fp32, in the order of their tensor. If any of them is not finite, some
    that come back are not either, and what is said of errors does not hold.
    """

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The bytes of a tensor of any shape.

        Raises
        ------
        ReproError
            They are no floating-point numbers of at most 32 bits.
        """
        check_numbers(values, "compressed")
        flat = values.detach().reshape(-1).float()
        return self._encode(flat) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)

    def decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        """So many fp32 numbers of what `encode` returned."""
        if not elements:
            return encoded.new_empty(0, dtype=torch.float32)
        return self._decode(encoded, elements)

    @abstractmethod
    def error_bound(self, values: torch.Tensor) -> torch.Tensor:
        """What none of these finite fp32 numbers (elements,) is off by more than, for each."""

    @abstractmethod
    def _encode(self, flat: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor: ...


def library(name: str, codec: str) -> Any:
    """A codec's library.

    Raises
    ------
    ReproError
        It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise ReproError(
            f"codec {codec} needs {name}, which is not installed: "
            "`pip install 'repro[compression]'`, or choose codec integers, fp8 or top-k"
        ) from None
