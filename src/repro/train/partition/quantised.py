"""Numbers as small integers with a scale per block (qwZ and qgZ of ZeRO++, Wang et al., 2023).

Blocks are those of Dettmers et al., ICLR 2022. With b bits and the block's largest magnitude a, the
scale is a / (2^(b-1) - 1). No number is off by more than half of it.
"""

import torch
from torch.nn import functional

from repro.catalog.parallel.partitions import BLOCK, SCALE_BYTES, quantised_bytes
from repro.errors import ReproError

_TAKEN = (torch.float32, torch.bfloat16, torch.float16)


def to_integers(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return rows of numbers as rows of bytes: integers of 8 or 4 bits, then the blocks' scales.

    Raises
    ------
    ReproError
        The numbers are no floating-point type of at most 32 bits.
    """
    check_numbers(values, "quantised", ": train with int8_weights and int4_gradients off")
    rows, most = len(values), _most(bits)
    padded = functional.pad(values.float(), (0, -values.shape[1] % BLOCK)).view(rows, -1, BLOCK)
    scales = padded.abs().amax(2, keepdim=True) / most
    # A block of zeros has scale 0, by which nothing can be divided.
    whole = (padded / scales.clamp(min=torch.finfo(torch.float32).tiny)).round().view(rows, -1)
    if bits == 4:
        shifted = (whole + most).to(torch.uint8)
        packed = shifted[:, 0::2] | shifted[:, 1::2] << 4
    else:
        packed = whole.to(torch.int8).view(torch.uint8)
    return torch.cat([packed, scales.view(rows, -1).view(torch.uint8)], dim=1)


def check_numbers(values: torch.Tensor, done: str, fix: str = "") -> None:
    """Check that the type of numbers can be encoded; `done` is the operation in the error.

    Raises
    ------
    ReproError
        The numbers are no floating-point type of at most 32 bits.
    """
    if values.dtype not in _TAKEN:
        taken = ", ".join(str(one).removeprefix("torch.") for one in _TAKEN)
        raise ReproError(
            f"numbers of type {str(values.dtype).removeprefix('torch.')} cannot be {done}; "
            f"{taken} can{fix}"
        )


def from_integers(packed: torch.Tensor, elements: int, bits: int) -> torch.Tensor:
    """Return rows of `elements` fp32 numbers from the result of `to_integers`."""
    rows, blocks = len(packed), -(-elements // BLOCK)
    assert packed.shape[1] == quantised_bytes(elements, bits)
    at = packed.shape[1] - blocks * SCALE_BYTES
    integers, scales = packed[:, :at], packed[:, at:]
    if bits == 4:
        pairs = torch.stack([integers & 15, integers >> 4], dim=2).view(rows, -1)
        whole = pairs.float() - _most(bits)
    else:
        whole = integers.contiguous().view(torch.int8).float()
    numbers = whole.view(rows, blocks, BLOCK) * scales.contiguous().view(torch.float32)[..., None]
    return numbers.view(rows, -1)[:, :elements]


def _most(bits: int) -> int:
    return int(2 ** (bits - 1)) - 1
