"""An emulated GPU's memory ends where the run's own account goes over it, wherever that is."""

import gc

import pytest
import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from repro.observe.memory import reset_peak, resident_bytes, trim_heap
from repro.train.allowance import keep_to_allowance

_MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def _tidy() -> None:
    """What earlier tests left would be given back, or collected, while memory is looked at."""
    gc.collect()
    trim_heap()


class _Layer(TransformerLayer):  # type: ignore[misc]
    """Takes so much memory, and keeps it."""

    def __init__(self, size_bytes: int) -> None:
        nn.Module.__init__(self)
        self._size = size_bytes
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(torch.ones(self._size, dtype=torch.uint8))
        return x

    def __call__(self, *arguments: torch.Tensor) -> torch.Tensor:
        return nn.Module.__call__(self, *arguments)


def _model(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(_Layer(size * _MEBIBYTE) for size in sizes))


def test_a_run_within_its_allowance_goes_on() -> None:
    model = _model(10, 10)
    look = keep_to_allowance(model, reset_peak(), 60 * _MEBIBYTE)
    model(torch.zeros(1))
    look()


def test_the_layer_that_goes_over_it_is_the_last() -> None:
    model = _model(10, 80, 10)
    keep_to_allowance(model, reset_peak(), 60 * _MEBIBYTE)
    with pytest.raises(MemoryError, match=r"taken \d+ MB, the emulated GPU has 63 MB for it"):
        model(torch.zeros(1))
    first, second, third = model
    assert first.kept and second.kept and not third.kept


def test_a_peak_that_is_over_counts_too() -> None:
    held = reset_peak()
    look = keep_to_allowance(_model(1), held, 60 * _MEBIBYTE)
    taken = torch.ones(80 * _MEBIBYTE, dtype=torch.uint8)
    del taken
    with pytest.raises(MemoryError):
        look()


def _blocks() -> list[torch.Tensor]:
    """Of 50 mebibytes, each too small to be mapped by itself."""
    return [torch.ones(16 * 1024, dtype=torch.uint8) for _ in range(50 * 64)]


def test_what_was_freed_leaves_room_before_the_next_pass() -> None:
    held, blocks = resident_bytes(), _blocks()
    del blocks[::2]
    reset_peak()
    model, kept = _model(1), resident_bytes() - held
    keep_to_allowance(model, held, kept)
    model(torch.zeros(1))
    assert resident_bytes() - held < 0.8 * kept


def test_what_a_forward_pass_has_freed_leaves_room_before_the_backward_pass() -> None:
    held, blocks = resident_bytes(), _blocks()

    class Freeing(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            del blocks[::2]
            return given

    reset_peak()
    model, kept = nn.Sequential(_Layer(1), Freeing()), resident_bytes() - held
    keep_to_allowance(model, held, kept)
    model(torch.zeros(1))
    assert resident_bytes() - held < 0.8 * kept
