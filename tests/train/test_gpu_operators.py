"""Operators that a GPU is measured with, here on the CPU: their operands' precisions and places."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from repro.catalog.studies.operator_benchmarks import BY_ELEMENTS, BY_ROWS, EMBEDDING_BAG, LOOKUPS
from repro.train import gpu_operators
from repro.train.megatron.models import DTYPES

_Operands = tuple[Any, ...]


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[_Operands]:
    """Operands of each call, which is made once instead of being timed."""
    found: list[_Operands] = []

    @contextmanager
    def here(precision: str) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(DTYPES[precision])
        yield
        torch.set_default_dtype(before)

    def in_turns_s(
        make: Callable[[], _Operands], call: Callable[..., object], *_: object
    ) -> list[float]:
        found.append(make())
        call(*found[-1])
        return []

    monkeypatch.setattr(gpu_operators, "_on_gpu_in", here)
    monkeypatch.setattr(gpu_operators, "_in_turns_s", in_turns_s)
    return found


def _call(operator: str, precisions: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    gpu_operators.call_s(operator, precisions, sizes, turns_bytes=0.0, repeats=1)


def test_copies_have_two_precisions(prepared: list[_Operands]) -> None:
    for operator in ("copy_/2", "copy_ strided"):
        _call(operator, ("fp32", "bf16"), (640,))
        to, given = prepared[-1]
        assert (to.dtype, given.dtype) == (torch.float32, torch.bfloat16)
        assert to.numel() == given.numel() == 640


@pytest.mark.parametrize("operator", ["product tn", "batched product NT"])
def test_products_are_of_other_numbers_than_ones(prepared: list[_Operands], operator: str) -> None:
    sizes = (20, 24, 28) if operator.startswith("product") else (3, 20, 24, 28)
    _call(operator, ("bf16",), sizes)
    left, right = prepared[-1]
    assert left.dtype == right.dtype == torch.bfloat16
    assert left.float().std() > 0.5 and right.float().std() > 0.5
    assert (left.shape[-2:], right.shape[-2:]) == ((20, 28), (28, 24))


def test_moments_of_a_normalisation_stay_in_fp32(prepared: list[_Operands]) -> None:
    _call("native_layer_norm_backward", ("fp32",), (5, 16))
    rows, _ = prepared[-1]
    assert rows.shape == (5, 16)
    assert torch.get_default_dtype() == torch.float32


def test_all_operators_can_be_called_in_half_precision(prepared: list[_Operands]) -> None:
    by_elements = [f"{name}/{count}" for name, counts in BY_ELEMENTS.items() for count in counts]
    for operator in by_elements:
        _call(operator, ("bf16",), (2560,))
    # The CPU has no kernel for moments in fp32 beside weights in bf16, which a GPU has.
    by_rows = {*BY_ROWS} - {"native_layer_norm_backward", "_softmax_backward_data"}
    for operator in by_rows:
        _call(operator, ("bf16",), (8, 64))
    for operator in LOOKUPS:
        _call(operator, ("bf16",), (8, 16, 30))
    _call(EMBEDDING_BAG, ("bf16",), (4, 2, 16, 30))
    assert len(prepared) == len(by_elements) + len(by_rows) + len(LOOKUPS) + 1
