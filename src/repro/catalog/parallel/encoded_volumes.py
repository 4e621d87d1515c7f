"""How many bytes codecs make of numbers, and what is sent of them."""

from math import isqrt

from repro.catalog.parallel.codecs import VARIABLE, Codec
from repro.catalog.parallel.partitions import SCALE_BYTES, quantised_bytes

_FP32 = 4
# ZFP's blocks of four numbers; of each, beside its planes, bits for zero or not, for its exponent
# and for tests of groups in all planes. Streams are whole words, and a byte says whether all
# numbers are finite.
ZFP_BLOCK, ZFP_OVERHEAD_BITS, _ZFP_PLANES, _ZFP_WORD_BITS = 4, 1 + 8 + 3, 32, 64
# A place and a number.
_PAIR_BYTES = 4 + _FP32


def is_fixed(codec: Codec) -> bool:
    """Whether as many numbers are always as many bytes."""
    return codec.kind not in VARIABLE


def kept(share: float, elements: int) -> int:
    """Of so many numbers, those that top-k sends."""
    return max(1, round(share * elements))


def encoded_bytes(codec: Codec, elements: int) -> int:
    """Of so many numbers in one message; the most, where it depends on them."""
    if not elements:
        return 0
    if codec.kind == "integers":
        return quantised_bytes(elements, 8 if codec.bits == 8 else 4)
    if codec.kind == "fp8":
        return SCALE_BYTES + elements
    if codec.kind == "top-k":
        return kept(codec.share or 0.0, elements) * _PAIR_BYTES
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
    """What one rank sends in an encoded all-reduce of so many numbers."""
    sizes = [
        encoded_bytes(codec, elements // ranks + (part < elements % ranks)) for part in range(ranks)
    ]
    # Every part twice, but one in either round.
    return 2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % ranks]


def square_side(elements: int) -> int:
    """Of the smallest square matrix that holds so many numbers."""
    return isqrt(max(0, elements - 1)) + 1


def power_sgd_bytes(elements: int, rank: int) -> int:
    """Of each of PowerSGD's two all-reduces."""
    return square_side(elements) * rank * _FP32
