"""An emulated GPU's memory ends where the run's own account goes over it, wherever that is."""

import pytest
import torch
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from repro.observe.memory import begin_peak, give_back, resident_bytes
from repro.train.allowance import keep_to_allowance

_MEBIBYTE = 1 << 20
# Of blocks of 50 mebibytes nearly all, with or without what an earlier test has left in the heap.
_LITTLE_MORE = 53 * _MEBIBYTE


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
    look = keep_to_allowance(model, begin_peak(), 60 * _MEBIBYTE)
    model(torch.zeros(1))
    look()


def test_the_layer_that_goes_over_it_is_the_last() -> None:
    model = _model(10, 80, 10)
    keep_to_allowance(model, begin_peak(), 60 * _MEBIBYTE)
    with pytest.raises(MemoryError, match=r"taken \d+ MB, the emulated GPU has 63 MB for it"):
        model(torch.zeros(1))
    first, second, third = model
    assert first.kept and second.kept and not third.kept


def test_a_peak_that_is_over_counts_too() -> None:
    held = begin_peak()
    look = keep_to_allowance(_model(1), held, 60 * _MEBIBYTE)
    taken = torch.ones(80 * _MEBIBYTE, dtype=torch.uint8)
    del taken
    with pytest.raises(MemoryError):
        look()


def test_what_was_freed_leaves_room_before_the_next_pass() -> None:
    """Blocks too small to be mapped by themselves, every second of which is in use."""
    give_back()
    held = begin_peak()
    model = _model(1)
    keep_to_allowance(model, held, _LITTLE_MORE)
    blocks = [torch.ones(16 * 1024, dtype=torch.uint8) for _ in range(50 * 64)]
    del blocks[::2]
    kept = resident_bytes() - held
    model(torch.zeros(1))
    assert resident_bytes() - held < 0.8 * kept


def test_what_a_forward_pass_has_freed_leaves_room_before_the_backward_pass() -> None:
    give_back()
    held = begin_peak()
    blocks = [torch.ones(16 * 1024, dtype=torch.uint8) for _ in range(50 * 64)]

    class Freeing(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            del blocks[::2]
            return given

    model = nn.Sequential(_Layer(1), Freeing())
    keep_to_allowance(model, held, _LITTLE_MORE)
    kept = resident_bytes() - held
    model(torch.zeros(1))
    assert resident_bytes() - held < 0.8 * kept
