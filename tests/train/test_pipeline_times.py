"""Where the time of a pipeline goes, with one stage that is too slow."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from rank_pool import RankPool
from staged import MICROBATCHES, staged_run

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.observe.messages import wire_time_s
from repro.train.records import RankRecord, TrainingRun

pytestmark = [pytest.mark.alone, pytest.mark.slow]

_STAGES = 4
_SLOW_STAGE = 1
_SLEEP_S = 0.04
_ITERATIONS = 8
_SLEPT_S = MICROBATCHES * _SLEEP_S


def _train_with_a_slow_stage(run: TrainingRun, scratch: Path) -> RankRecord:
    """A rank's task: the run, with a sleep in every forward pass of one stage."""
    import torch.distributed as dist

    from repro.train import run as training
    from repro.train.megatron.steps import forward_step

    def slowed(*arguments: Any) -> Callable[..., Any]:
        step = forward_step(*arguments)

        def sleep_and_step(batches: Iterator[Any], model: Any) -> Any:
            time.sleep(_SLEEP_S)
            return step(batches, model)

        return sleep_and_step if dist.get_rank() == _SLOW_STAGE else step

    with mock.patch.object(training, "forward_step", slowed):
        return training.train(run, scratch)[0]


@pytest.fixture(scope="module")
def records(
    pool: RankPool, enwiki: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[RankRecord]:
    run = replace(
        staged_run("gpt", enwiki, stages=_STAGES),
        iterations=_ITERATIONS,
        validate_every=2,
        validation_batches=3,
    )
    scratch = tmp_path_factory.mktemp("scratch")
    return pool.run(_train_with_a_slow_stage, run, scratch, ranks=_STAGES, stages=_STAGES)


def test_every_rank_returns_a_record_of_its_stage(records: list[RankRecord]) -> None:
    assert [record.rank for record in records] == list(range(_STAGES))
    assert [record.pipeline_rank for record in records] == list(range(_STAGES))
    for record in records:
        assert len(record.loss) == _ITERATIONS
        assert math.isnan(record.loss[0]) == (record.pipeline_rank < _STAGES - 1)
        assert {end.iteration for end in record.messages} == set(range(_ITERATIONS))
        assert record.gradient_bytes == 4 * record.parameters
    assert np.isfinite(records[-1].loss).all()
    (validation,) = {record.validation_loss for record in records}
    assert len(validation) == _ITERATIONS // 2 and 1 < validation[0] < 10
    # The ends hold the embeddings beside their layers.
    assert records[0].parameters > records[1].parameters == records[2].parameters


def test_phases_add_up_and_are_megatrons_timers(records: list[RankRecord]) -> None:
    for record in records:
        phases, timers = record.phase_time_s, record.timer_time_s
        assert tuple(phases) == PHASES and tuple(timers) == P2P_TIMERS
        np.testing.assert_allclose(
            np.sum(list(phases.values()), axis=0), record.iteration_time_s, rtol=1e-9
        )
        assert np.min(np.divide(phases["other"], record.iteration_time_s)) < 0.1
        assert min(min(times) for times in phases.values()) >= 0
        for phase, names in {
            "forward receive": ("forward-recv", "backward-send-forward-recv"),
            "backward receive": ("backward-recv", "forward-send-backward-recv"),
            "send": ("forward-send", "backward-send"),
        }.items():
            np.testing.assert_allclose(phases[phase], sum(np.array(timers[n]) for n in names))
        for phase in ("embedding sync", "gradient sync", "optimizer"):
            assert min(phases[phase]) > 0
        if record.rank == _SLOW_STAGE:
            assert min(phases["forward compute"]) > _SLEPT_S


def _timers_s(records: list[RankRecord]) -> np.ndarray:
    """Megatron's timers (iteration, rank, timer)."""
    times = [[record.timer_time_s[name] for name in P2P_TIMERS] for record in records]
    return np.moveaxis(np.array(times), -1, 0)


def test_calls_of_the_log_take_what_megatrons_timers_measure(records: list[RankRecord]) -> None:
    timers = _timers_s(records)
    calls = np.zeros_like(timers)
    for rank, record in enumerate(records):
        bounds: dict[tuple[int, int, str], list[float]] = {}
        for end in record.messages:
            key = (end.iteration, end.call, end.timer)
            bounds.setdefault(key, []).extend((end.posted_s, end.completed_s))
        for (iteration, _, timer), times in bounds.items():
            calls[iteration, rank, P2P_TIMERS.index(timer)] += max(times) - min(times)
    # The two clocks may drift; and a busy machine that stops a rank between a timer and its call
    # adds to some iterations, hardly to all.
    assert (timers - calls).min() > -1e-3
    assert ((timers - calls) - 0.05 * timers).min(axis=0).max() <= 1e-3
    wire = wire_time_s([record.messages for record in records], _ITERATIONS)
    assert ((wire > 0) == (calls > 0)).all()
    assert (wire <= calls + 1e-9).all()


def test_neighbours_wait_for_a_slow_stage_while_nothing_is_under_way(
    records: list[RankRecord],
) -> None:
    wire = wire_time_s([record.messages for record in records], _ITERATIONS)
    waiting = np.median(_timers_s(records) - wire, axis=0)
    # Two micro batches arrive at the stage behind before it has any other work to do.
    assert waiting[_SLOW_STAGE + 1, P2P_TIMERS.index("forward-recv")] > 1.8 * _SLEEP_S
    # The stage before has sent one and must wait with the next two until they are wanted.
    assert waiting[_SLOW_STAGE - 1, P2P_TIMERS.index("forward-send")] > 1.8 * _SLEEP_S
    total = waiting.sum(axis=-1)
    assert total[_SLOW_STAGE] < 0.5 * min(total[_SLOW_STAGE - 1], total[_SLOW_STAGE + 1])
    # As short as in the quietest iteration, on a machine that may be busy.
    assert wire.sum(axis=-1).min(axis=0).max() < 0.25 * _SLEPT_S
