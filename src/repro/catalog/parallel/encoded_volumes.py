"""Sizes of encoded messages, and bytes that encoded collectives send."""

from math import isqrt

from repro.catalog.parallel.codecs import VARIABLE, Codec
from repro.catalog.parallel.partitions import SCALE_BYTES, quantised_bytes

_FP32 = 4
# ZFP codes blocks of four numbers. In addition to its bit planes, a block has a bit for zero, bits
# for its exponent, and bits for group tests in all planes. Streams are padded to whole words, and
# one more byte states whether all numbers are finite.
ZFP_BLOCK, ZFP_OVERHEAD_BITS, _ZFP_PLANES, _ZFP_WORD_BITS = 4, 1 + 8 + 3, 32, 64
# An index and a number.
_PAIR_BYTES = 4 + _FP32


def has_fixed_size(codec: Codec) -> bool:
    """Return whether the encoded size depends on the number of elements only."""
    return codec.kind not in VARIABLE


def top_k_count(share: float, elements: int) -> int:
    """Return how many of these elements top-k sends."""
    return max(1, round(share * elements))


def encoded_bytes(codec: Codec, elements: int) -> int:
    """Return the size of one encoded message, or its upper bound if it depends on the numbers."""
    if not elements:
        return 0
    if codec.kind == "integers":
        return quantised_bytes(elements, 8 if codec.bits == 8 else 4)
    if codec.kind == "fp8":
        return SCALE_BYTES + elements
    if codec.kind == "top-k":
        return top_k_count(codec.share or 0.0, elements) * _PAIR_BYTES
    if codec.kind == "zstd":
        # ZSTD_COMPRESSBOUND of zstd.h.
        size = _FP32 * elements
        return size + (size >> 8) + (max(0, (128 << 10) - size) >> 11)
    block_bits = ZFP_OVERHEAD_BITS + ZFP_BLOCK * _ZFP_PLANES
    if codec.bits is not None:
        block_bits = round(ZFP_BLOCK * codec.bits)
    blocks = -(-elements // ZFP_BLOCK)
    return -(-blocks * block_bits // _ZFP_WORD_BITS) * _ZFP_WORD_BITS // 8 + 1


def ring_bytes(codec: Codec, elements: int, ranks: int, rank: int) -> int:
    """Return the bytes that one rank sends in an encoded ring all-reduce."""
    sizes = [
        encoded_bytes(codec, elements // ranks + (part < elements % ranks)) for part in range(ranks)
    ]
    # Each round (reduce-scatter, all-gather) sends every part but one.
    return 2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % ranks]


def square_side(elements: int) -> int:
    """Return the side of the smallest square matrix that holds this many elements."""
    return isqrt(max(0, elements - 1)) + 1


def power_sgd_bytes(elements: int, rank: int) -> int:
    """Return the size of each of PowerSGD's two all-reduces."""
    return square_side(elements) * rank * _FP32
