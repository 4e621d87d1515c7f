"""Blockwise integers: what they are off by, and which numbers they take."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.parallel.partitions import BLOCK, quantised_bytes
from repro.errors import ReproError
from repro.train.partition.quantised import from_integers, to_integers

_MOST = {8: 127, 4: 7}


@given(st.integers(0, 10_000), st.integers(1, 3 * BLOCK), st.sampled_from([8, 4]))
def test_no_number_is_off_by_more_than_half_a_scale(seed: int, elements: int, bits: int) -> None:
    values = torch.randn(3, elements, generator=torch.Generator().manual_seed(seed))
    packed = to_integers(values, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, quantised_bytes(elements, bits))
    back = from_integers(packed, elements, bits)
    for begin in range(0, elements, BLOCK):
        block = slice(begin, begin + BLOCK)
        most = values[:, block].abs().amax(1, keepdim=True)
        bound = most / _MOST[bits] / 2 * (1 + 1e-5)
        assert ((back - values)[:, block].abs() <= bound).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_zeros_and_largest_numbers_come_back(bits: int) -> None:
    values = torch.zeros(1, 2 * BLOCK)
    values[0, 5], values[0, 6] = 3.0, -3.0
    assert torch.equal(from_integers(to_integers(values, bits), 2 * BLOCK, bits), values)


@pytest.mark.parametrize("kind", [torch.float64, torch.int64])
def test_other_numbers_are_refused_by_name(kind: torch.dtype) -> None:
    with pytest.raises(ReproError, match=str(kind).removeprefix("torch.")):
        to_integers(torch.ones(1, 4, dtype=kind), 8)
