"""Codec of a description."""

from repro.catalog.parallel.codecs import Codec
from repro.train.compression.casts import Fp8, Integers
from repro.train.compression.interface import Coding
from repro.train.compression.lossless import ShuffledZstd
from repro.train.compression.top_k import TopK
from repro.train.compression.zfp import ZfpAccuracy, ZfpRate


def coding_of(codec: Codec) -> Coding:
    """Return the object that encodes and decodes.

    Raises
    ------
    ReproError
        The codec's library is not installed.
    """
    # A description has the setting of its kind.
    if codec.kind == "zfp-rate" and codec.bits is not None:
        return ZfpRate(codec.bits)
    if codec.kind == "zfp-accuracy" and codec.tolerance is not None:
        return ZfpAccuracy(codec.tolerance)
    if codec.kind == "integers":
        return Integers(8 if codec.bits == 8 else 4)
    if codec.kind == "top-k" and codec.share is not None:
        return TopK(codec.share)
    return Fp8() if codec.kind == "fp8" else ShuffledZstd()
