"""CUDA names mean the CPU inside the scope, and nothing is patched outside."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

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


def _socket_threads() -> tuple[int, int]:
    """Of this process; and its groups of several ranks."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    groups = [group for group in dist.distributed_c10d._world.pg_map if group.size() > 1]
    return sum(name.startswith("gloo_tcp") for name in names), len(groups)


@pytest.mark.slow
def test_all_groups_have_one_thread_for_their_sockets(pool: RankPool) -> None:
    for threads, groups in pool.run(_socket_threads, ranks=4, tensor_parallel=2):
        assert groups > 3
        assert threads == 1
