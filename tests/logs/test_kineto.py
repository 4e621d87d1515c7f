"""Reading of PyTorch's profiler traces: NCCL's kernels, and a trace made here with gloo."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing import spawn

from repro.logs.kineto import read_kineto

pytestmark = pytest.mark.slow

SAMPLE = (Path(__file__).parent / "samples" / "kineto_nccl.json").read_text(encoding="utf-8")
MiB = 1024**2
_RANKS = 2


def _trace(rank: int, folder: Path) -> None:
    """A rank's task: write the trace of what gloo runs, in this order."""
    import torch
    import torch.distributed as dist

    from repro.observe.operator_trace import trace_of

    address = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=_RANKS)
    x, whole = torch.ones(1000), torch.ones(2000, dtype=torch.bfloat16)

    def communicate() -> None:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, whole[:1000].clone())
        dist.all_to_all_single(torch.empty(1000), x)
        dist.broadcast(x, 0)
        dist.barrier()

    (folder / f"{rank}.json").write_text(trace_of(communicate), encoding="utf-8")
    dist.destroy_process_group()


def trace(*events: dict[str, Any], **head: Any) -> str:
    return json.dumps({"schemaVersion": 1, **head, "traceEvents": list(events)})


def kernel(duration: Any = 100.0, **args: Any) -> dict[str, Any]:
    known = {
        "Collective name": "allreduce",
        **{"In msg nelems": 1024, "Out msg nelems": 1024, "Group size": 4, "dtype": "Float"},
    }
    return {
        **{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)"},
        **{"ts": 1.0, "dur": duration, "args": known | args},
    }


def gloo(name: str = "gloo:all_gather", **args: Any) -> dict[str, Any]:
    known = {"Input type": ["float"], "Input Dims": [[16, 64]]}
    return {
        **{"ph": "X", "cat": "user_annotation", "name": name, "ts": 1.0, "dur": 50.0},
        "args": known | args,
    }


def test_kernels_of_nccl() -> None:
    rows, skipped = read_kineto(SAMPLE, ranks=None)
    assert [(row.collective, row.dtype, row.ranks, row.size_bytes) for row in rows] == [
        ("all_reduce", "bfloat16", 8, 32 * MiB),
        ("all_gather", "bfloat16", 8, 8 * 4 * MiB),
        ("reduce_scatter", "float", 4, 4 * 16 * MiB),
        ("all_to_all", "half", 8, 16 * MiB),
        ("all_to_all", "half", 8, 16 * MiB),
        ("send_recv", "bfloat16", 2, 8 * MiB),
        ("broadcast", "int64", 8, 8 * MiB),
    ]
    assert rows[0].time_us == 812.31
    assert rows[0].busbw_GBps == pytest.approx(2 * 7 / 8 * 32 * MiB / 812.31e-6 * 1e-9)
    unequal, barrier = skipped
    assert unequal.startswith("traceEvents[9]: ncclDevKernel_SendRecv")
    assert unequal.endswith("an all-to-all of unequal parts")
    assert barrier.endswith("collective 'barrier' is not supported")


def test_a_trace_of_gloo_made_here(tmp_path: Path) -> None:
    spawn(_trace, (tmp_path,), nprocs=_RANKS)
    for rank in range(_RANKS):
        text = (tmp_path / f"{rank}.json").read_text(encoding="utf-8")
        rows, skipped = read_kineto(text, ranks=None)
        found = sorted((row.collective, row.dtype, row.ranks, row.size_bytes) for row in rows)
        assert found == [
            ("all_gather", "bfloat16", 2, 2 * 2000),
            ("all_reduce", "float", 2, 4000),
            ("all_to_all", "float", 2, 4000),
            ("broadcast", "float", 2, 4000),
        ]
        assert all(0 < row.time_us < 60e6 for row in rows)
        (barrier,) = skipped
        assert "collective 'barrier' is not supported" in barrier


def test_ranks_of_gloo_are_those_of_its_groups_or_given() -> None:
    one = {"pg_config": [{"pg_size": 4}, {"pg_size": 4}]}
    two = {"pg_config": [{"pg_size": 4}, {"pg_size": 2}]}
    (row,), _ = read_kineto(trace(gloo(), distributedInfo=one), ranks=2)
    assert (row.ranks, row.size_bytes) == (4, 4 * 16 * 64 * 4)
    assert row.busbw_GBps == pytest.approx(3 / 4 * 4 * 4096 / 50e-6 * 1e-9)
    (row,), _ = read_kineto(trace(gloo(), distributedInfo=two), ranks=2)
    assert (row.ranks, row.size_bytes) == (2, 2 * 16 * 64 * 4)
    for text in (trace(gloo(), distributedInfo=two), trace(gloo())):
        rows, (problem,) = read_kineto(text, ranks=None)
        assert rows == []
        assert problem.endswith("process group is missing; fix: give --ranks N")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (kernel(0.0), "its time is 0 us"),
        (kernel(-1.0), "its time is -1 us"),
        (kernel(float("nan")), "its time is nan us"),
        (kernel("fast"), "could not convert"),
        (kernel(**{"In msg nelems": 0, "Out msg nelems": 0}), "no bytes to move"),
        (kernel(**{"In msg nelems": None}), "int() argument"),
        (kernel(dtype="ComplexFloat"), "element type 'ComplexFloat' is not supported"),
        (kernel() | {"args": {"stream": 7}}, "no 'Collective name'"),
        (gloo("gloo:send"), "its time is not that of the transfer"),
        (
            gloo() | {"args": {"External id": 7}},
            "has no sizes; fix: profile with record_shapes=True",
        ),
        (gloo(**{"Input type": ["float", "int"]}), "elements of several types"),
    ],
)
def test_events_that_cannot_be_read_are_named(event: dict[str, Any], problem: str) -> None:
    rows, (skipped,) = read_kineto(trace(kernel(), event, kernel()), ranks=4)
    assert len(rows) == 2
    assert skipped.startswith(f"traceEvents[1]: {event['name'][:30]}")
    assert problem in skipped


def test_ranks_of_a_kernel_that_does_not_say_them_are_given() -> None:
    event = kernel()
    del event["args"]["Group size"]
    assert read_kineto(trace(event), ranks=16)[0][0].ranks == 16
    assert "no 'Group size'" in read_kineto(trace(event), ranks=None)[1][0]
    assert read_kineto(trace(kernel()), ranks=16)[0][0].ranks == 4


def test_calls_without_kernels_are_no_measurement() -> None:
    call = kernel() | {"cat": "cpu_op", "name": "record_param_comms"}
    rows, (problem,) = read_kineto(trace(call, call), ranks=4)
    assert rows == []
    assert (
        problem == "2 calls of collectives without kernels; fix: profile with ProfilerActivity.CUDA"
    )
    other = kernel() | {"name": "gemm", "args": {}}
    rows, (problem,) = read_kineto(trace(call, other), ranks=1)
    assert (rows, problem) == ([], "1 calls of collectives without kernels; all of one rank")


def test_a_trace_that_ends_early_is_read_to_its_last_whole_event() -> None:
    rows, skipped = read_kineto(SAMPLE[: SAMPLE.index("_reduce_scatter_base")], ranks=None)
    assert [row.collective for row in rows] == ["all_reduce", "all_gather"]
    assert "the file ends early" in skipped[0]
