"""Codecs keep their bounds and sizes on whatever numbers there are."""

import sys
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repro.catalog.parallel.codecs import Codec
from repro.catalog.parallel.encoded_volumes import encoded_bytes, has_fixed_size
from repro.errors import ReproError
from repro.train.compression.codecs import coding_of
from repro.train.compression.interface import Coding

_CODECS = {
    "zfp at its least": Codec(kind="zfp-rate", bits=2.25),
    "zfp at 8": Codec(kind="zfp-rate", bits=8),
    "zfp at 16": Codec(kind="zfp-rate", bits=16),
    "zfp at its most": Codec(kind="zfp-rate", bits=32),
    "zfp within": Codec(kind="zfp-accuracy", tolerance=1e-3),
    "int8": Codec(kind="integers", bits=8),
    "int4": Codec(kind="integers", bits=4),
    "fp8": Codec(kind="fp8"),
    "top-k": Codec(kind="top-k", share=0.1),
    "zstd": Codec(kind="zstd"),
}
_every = pytest.mark.parametrize("name", list(_CODECS))
# Numbers of each size there is, those that are no normal ones included.
_FINITE = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32),
    st.floats(-1, 1, width=32),
    st.floats(-(2.0**-126), 2.0**-126, width=32),
)
_LENGTHS = st.integers(0, 600)


def _coding(name: str) -> Coding:
    if name.startswith("zfp"):
        pytest.importorskip("zfpy")
    if name == "zstd":
        pytest.importorskip("zstandard")
    return coding_of(_CODECS[name])


@pytest.mark.slow
@_every
@given(numbers=arrays(np.float32, _LENGTHS, elements=_FINITE, fill=st.nothing()))
@settings(max_examples=40, deadline=None)
def test_bounds_hold_and_sizes_are_as_promised(name: str, numbers: np.ndarray) -> None:
    coding, values = _coding(name), torch.from_numpy(numbers)
    encoded = coding.encode(values)
    assert encoded.dtype == torch.uint8
    promised = encoded_bytes(_CODECS[name], len(values))
    assert len(encoded) == promised if has_fixed_size(_CODECS[name]) else len(encoded) <= promised
    back = coding.decode(encoded, len(values))
    assert (back.dtype, back.shape) == (torch.float32, values.shape)
    if len(values):
        off = (back.double() - values.double()).abs()
        assert (off <= coding.error_bound(values).double()).all()


@_every
@given(
    numbers=arrays(np.float32, st.integers(1, 300), elements=st.floats(width=32)),
    at=st.integers(0, 299),
    odd=st.sampled_from([np.nan, np.inf, -np.inf]),
)
@settings(max_examples=20, deadline=None)
def test_an_overflow_is_never_hidden(name: str, numbers: np.ndarray, at: int, odd: float) -> None:
    # fp16's loss scale is lowered when a summed gradient is not finite.
    numbers[at % len(numbers)] = odd
    coding, values = _coding(name), torch.from_numpy(numbers)
    encoded = coding.encode(values)
    if has_fixed_size(_CODECS[name]):
        assert len(encoded) == encoded_bytes(_CODECS[name], len(values))
    assert not coding.decode(encoded, len(values)).isfinite().all()


@_every
def test_shapes_and_strides_are_those_of_the_numbers_in_order(name: str) -> None:
    coding = _coding(name)
    whole = torch.randn(12, 14, generator=torch.Generator().manual_seed(1))
    strided = whole.T[::2]
    assert not strided.is_contiguous()
    assert torch.equal(coding.encode(strided), coding.encode(strided.contiguous().view(-1)))
    halves = whole.bfloat16()
    assert torch.equal(coding.encode(halves), coding.encode(halves.float()))


@_every
def test_nothing_is_no_bytes_and_zeros_stay(name: str) -> None:
    coding = _coding(name)
    assert len(coding.encode(torch.empty(0))) == encoded_bytes(_CODECS[name], 0) == 0
    assert coding.decode(torch.empty(0, dtype=torch.uint8), 0).shape == (0,)
    assert not coding.decode(coding.encode(torch.zeros(70)), 70).any()


def test_lossless_is_bit_by_bit_and_smaller_where_exponents_are_alike() -> None:
    coding = _coding("zstd")
    values = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    values[:3] = torch.tensor([torch.nan, -0.0, torch.inf])
    encoded = coding.encode(values)
    back = coding.decode(encoded, 4096)
    assert torch.equal(back.view(torch.int32), values.view(torch.int32))
    assert len(encoded) < 0.95 * values.nbytes


def test_the_largest_numbers_are_those_that_are_kept() -> None:
    values = torch.tensor([0.1, -5.0, 0.2, 4.0] + 16 * [0.0])
    back = _coding("top-k").decode(_coding("top-k").encode(values), 20)
    assert back.tolist() == [0.0, -5.0, 0.0, 4.0] + 16 * [0.0]


def test_a_higher_rate_is_nearer() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    off = []
    for rate in (4, 8, 12, 16, 24):
        coding = coding_of(Codec(kind="zfp-rate", bits=rate)) if _coding("zfp at 8") else None
        assert coding is not None
        off.append(float((coding.decode(coding.encode(values), 4096) - values).norm()))
    # A bit more halves it.
    for coarse, fine, bits in zip(off, off[1:], (4, 4, 4, 8), strict=False):
        assert fine < coarse / 2 ** (bits - 1)


@pytest.mark.parametrize(("name", "module"), [("zfp at 8", "zfpy"), ("zstd", "zstandard")])
def test_a_missing_library_is_named_with_what_installs_it(name: str, module: str) -> None:
    with (
        mock.patch.dict(sys.modules, {module: None}),
        pytest.raises(ReproError, match=rf"needs {module}.*repro\[compression\]"),
    ):
        coding_of(_CODECS[name])


def test_other_numbers_are_refused_by_name() -> None:
    with pytest.raises(ReproError, match="numbers of type float64 cannot be compressed"):
        coding_of(Codec(kind="fp8")).encode(torch.ones(3, dtype=torch.float64))
