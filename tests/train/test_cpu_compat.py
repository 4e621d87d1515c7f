"""CUDA names mean the CPU inside the scope, and nothing is patched outside."""

import pytest
import torch
import torch.distributed as dist

from repro.train.megatron.cpu_compat import cpu_as_cuda


def test_cuda_literals_make_cpu_tensors_inside_only() -> None:
    before = (torch.cuda.current_device, torch.cuda.synchronize, torch.cuda.current_stream)
    with cpu_as_cuda():
        made = torch.ones(2, device="cuda")
        assert made.device.type == "cpu"
        assert made.cuda() is made
        assert made.type() == "torch.cuda.FloatTensor"
        assert torch.cuda.current_device() == torch.device("cpu")
        torch.cuda.synchronize()
    after = (torch.cuda.current_device, torch.cuda.synchronize, torch.cuda.current_stream)
    assert before == after
    assert torch.ones(2).type() == "torch.FloatTensor"


def test_other_operations_are_untouched() -> None:
    left, right = torch.randn(3, 4), torch.randn(4, 5)
    expected = left @ right
    with cpu_as_cuda():
        assert torch.equal(left @ right, expected)
        assert torch.zeros(2, device="meta").device.type == "meta"


def test_a_group_of_one_rank_reduces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: list[int] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *_: reduced.append(tensor.numel()))
    for ranks in (1, 2):
        monkeypatch.setattr(dist, "get_world_size", lambda group, ranks=ranks: ranks)
        with cpu_as_cuda():
            dist.all_reduce(torch.ones(ranks))
    assert reduced == [2]
