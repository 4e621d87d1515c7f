"""The log sees every collective and message once, whichever way it is called."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from torch.distributed.distributed_c10d import _coalescing_manager

from repro.observe.communication_log import CommunicationLog, logging
from repro.observe.transfers import Transfer, check_clocks

pytestmark = pytest.mark.slow

_COUNT, _FP32 = 12, 4
_S = _COUNT * _FP32


def _every_call() -> list[Transfer]:
    """A rank's task: each way to communicate once, and what the log has of it."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    log = CommunicationLog(lambda: "optimizer")
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    x, half = torch.ones(_COUNT), torch.ones(_COUNT // 2)
    dist.all_reduce(x.clone())
    with logging(log):
        dist.all_reduce(x.clone())
        dist.all_reduce(x.clone(), async_op=True).wait()
        group.allreduce([x.clone()]).wait()
        group.allreduce(tensors=[x.clone()]).wait()
        with _coalescing_manager(group):
            dist.all_reduce(x.clone(), group=group)
            dist.all_reduce(half.clone(), group=group)
        functional = torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name)
        torch.ops._c10d_functional.wait_tensor(functional)
        dist.all_gather([half.clone(), half.clone()], half)
        # On a CPU these two are rings of messages.
        dist.all_gather_into_tensor(x.clone(), half, group=group)
        dist.reduce_scatter_tensor(half.clone(), x.clone())
        dist.all_to_all_single(x.clone(), x.clone())
        dist.broadcast(x.clone(), 0)
        dist.reduce(x.clone(), 0)
        peer = 1 - rank
        both = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x.clone(), peer)]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        if rank == 0:
            dist.send(half.bfloat16(), 1)
        else:
            dist.recv(half.bfloat16(), 0)
        dist.barrier()
        dist.all_reduce(x.clone(), group=alone)
        with torch.inference_mode():
            dist.all_reduce(x.clone())
    dist.all_reduce(x.clone())
    return log.take(3)


def test_every_way_of_calling_is_seen_once(pool: RankPool) -> None:
    by_rank = pool.run(_every_call, ranks=2)
    for rank, found in enumerate(by_rank):
        last = ("recv" if rank else "send", _S // 4)
        expected = [("all_reduce", _S)] * 4 + [("all_reduce", _S + _S // 2), ("all_reduce", _S)]
        expected += [("all_gather", _S)] * 2 + [("reduce_scatter", _S)]
        expected += [(name, _S) for name in ("all_to_all", "broadcast", "reduce", "send", "recv")]
        expected += [last, ("barrier", 0), ("all_reduce", _S)]
        assert [(one.operation, one.size_bytes) for one in found] == expected
        assert {one.ranks for one in found} == {(0, 1)}
        assert {one.iteration for one in found} == {3}
        messages = [one for one in found if one.operation in ("send", "recv")]
        assert [one.peer for one in messages] == [1 - rank] * 3
        assert Counter(one.role for one in found) == {"world": 14, "pipeline": 3}
        assert messages[-1].dtype == "bfloat16"
        asynchronous = [one.asynchronous for one in found if one.operation == "all_reduce"]
        assert asynchronous[:2] == [False, True]
        # torch waits for functional collectives by itself.
        ends = [one.end_s for one in found]
        assert [end != end for end in ends] == [number == 5 for number in range(len(ends))]
        assert all(one.start_s < one.end_s for one in found if one.end_s == one.end_s)
    check_clocks(by_rank)


def _gradients() -> list[Transfer]:
    """A rank's task: torch's own data parallelism, whose C++ calls while gradients are computed."""
    log = CommunicationLog(lambda: "backward")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(_COUNT, 1, bias=False))
    with logging(log):
        model(torch.ones(_COUNT)).sum().backward()
    return log.take(0)


def test_what_torch_calls_in_cpp_is_seen(pool: RankPool) -> None:
    for found in pool.run(_gradients, ranks=2):
        assert [(one.operation, one.size_bytes) for one in found] == [("all_reduce", _S)]
