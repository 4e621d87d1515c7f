"""The distributed optimizer trains as the other one does; what it moves is seen on NICs
(tests/launch/ranks/test_sites.py)."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from made_up import small_run
from rank_pool import RankPool

from repro.train.records import RankRecord, TrainingRun
from repro.train.run import iterate, train
from repro.train.training import set_up

pytestmark = pytest.mark.slow


def _scattered(in_place: bool, mean: bool) -> bool:
    """A rank's task: whether its part of a sum is that of an all-reduce."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    given = torch.arange(5.0 * ranks) * (rank + 1)
    whole = given.clone()
    dist.all_reduce(whole)
    expected = whole.chunk(ranks)[rank] / (ranks if mean else 1)
    result = given.chunk(ranks)[rank] if in_place else torch.empty(5)
    others = given.clone()
    dist.reduce_scatter_tensor(result, given, op=dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
    if in_place:
        others.chunk(ranks)[rank].copy_(result)
    return torch.allclose(result, expected) and torch.equal(given, others)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_the_ring_scatters_the_sum(pool: RankPool, ranks: int, in_place: bool, mean: bool) -> None:
    assert pool.run(_scattered, in_place, mean, ranks=ranks) == [True] * ranks


def _gathered(in_place: bool) -> bool:
    """A rank's task: whether it has every rank's part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    result = torch.zeros(6 * ranks)
    given = result.chunk(ranks)[rank] if in_place else torch.empty(6)
    given.copy_(torch.arange(6.0) + 10 * rank)
    dist.all_gather_into_tensor(result, given)
    return torch.equal(result, torch.cat([torch.arange(6.0) + 10 * n for n in range(ranks)]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_ring_gathers_all_parts(pool: RankPool, ranks: int, in_place: bool) -> None:
    assert pool.run(_gathered, in_place, ranks=ranks) == [True] * ranks


def _refused() -> str:
    try:
        dist.reduce_scatter_tensor(torch.empty(1), torch.empty(2), op=dist.ReduceOp.MAX)
    except ValueError as error:
        return str(error)
    return ""


def test_the_ring_refuses_what_it_has_not(pool: RankPool) -> None:
    assert "MAX" in pool.run(_refused, ranks=1)[0]


def _train(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task."""
    (record,) = train(run, scratch)
    return record


@pytest.mark.parametrize("ranks", [2, 4])
def test_it_trains_as_the_optimizer_of_each_replica_does(
    pool: RankPool, enwiki: Path, tmp_path: Path, ranks: int
) -> None:
    whole = small_run("gpt", enwiki, iterations=3)
    shared = replace(whole, distributed_optimizer=True)
    alone, together = (pool.run(_train, run, tmp_path, ranks=ranks) for run in (whole, shared))
    for one, other in zip(alone, together, strict=True):
        # A step of Adam changes a loss by more: parameters that were not gathered would show.
        assert other.loss == pytest.approx(one.loss, rel=2e-6)
        # Two moments of 4 bytes: 8 bytes a parameter, and an equal share of them.
        assert one.adam_state_bytes == 8 * one.parameters
        assert other.adam_state_bytes == pytest.approx(8 * one.parameters / ranks, rel=0.02)
        assert min(other.phase_time_s["parameter all-gather"]) > 0
        assert set(one.phase_time_s["parameter all-gather"]) == {0.0}
        for record in (one, other):
            assert min(record.phase_time_s["other"]) >= 0


def test_checkpoints_of_it_are_refused(pool: RankPool, enwiki: Path, tmp_path: Path) -> None:
    run = replace(small_run("gpt", enwiki, every=1), distributed_optimizer=True)

    with pytest.raises(AssertionError, match=r"save_every is 1; checkpoints of the distributed"):
        pool.run(_train, run, tmp_path, ranks=1)


def _paced_steps(run: TrainingRun, scratch: Path) -> list[int]:
    """A rank's task: how many passes each iteration's step is to its pace."""
    state = set_up(run, scratch, cores=0.5)
    pace, found = state.timers.paces["optimizer"], []
    for _ in range(3):
        iterate(state, [next(state.training)])
        found.append(len(pace.taken_s))
        pace.taken_s.clear()
    return found


def test_a_step_with_a_gather_in_it_is_one_pass(
    pool: RankPool, enwiki: Path, tmp_path: Path
) -> None:
    run = replace(small_run("gpt", enwiki), distributed_optimizer=True)
    for found in pool.run(_paced_steps, run, tmp_path, ranks=2):
        assert found == [1, 1, 1]
