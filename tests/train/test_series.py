"""Which iterations are recorded, and when there are enough of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import small_run

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.errors import ReproError
from repro.train import series as recording
from repro.train.pacing import PASSES, PacedTimers
from repro.train.records import TrainingRun
from repro.train.series import Iteration, Series, Watch


def _iteration(time_s: float = 1.0, contention_fraction: float = 0.0) -> Iteration:
    phases = dict.fromkeys(PHASES, 0.0) | {"gradient sync": time_s / 2}
    return Iteration(
        0.0, time_s, phases, dict.fromkeys(P2P_TIMERS, 0.0), (), 7.0, contention_fraction
    )


def _watch(run: TrainingRun, found: Iterator[Iteration]) -> tuple[Watch, list[str]]:
    said: list[str] = []
    return Watch(lambda _: next(found), lambda _, words: said.append(words), [Series(1)], run), said


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    return replace(small_run("gpt", tmp_path, iterations=3), most_iterations=6)


def test_pipelines_warm_up_on_what_fills_them(one_rank: None, run: TrainingRun) -> None:
    timers, asked = PacedTimers(cores=1.0), list[int]()

    def one(microbatches: int) -> Iteration:
        asked.append(microbatches)
        # The first iteration's passes take twice as long as all that follow.
        for name in PASSES:
            timers.paces[name].taken_s += microbatches * [0.02 if len(asked) == 1 else 0.01]
        return _iteration()

    pipeline = replace(run, pipeline_parallel=4, microbatches=32)
    watch = Watch(one, lambda *_: None, [Series(2), Series(32)], pipeline)
    assert watch.warm_up(timers, ()) == (3, 1.0)
    for series in watch.series:
        watch.record(series)
    assert asked == [4, 4, 4, 2, 32]
    assert [timers.paces[name].hold_s for name in PASSES] == [0.01, 0.01, 0.01]


@pytest.mark.parametrize(
    ("passes_s", "slower", "held_s"),
    [
        # The optimizer needs five times as long: everything is five times as slow.
        ((0.004, 0.01, 0.002), 5.0, (0.02, 0.05, 0.01)),
        # Passes that need less wait, because links cannot be faster.
        ((0.03, 0.02, 0.01), 1.0, (0.03, 0.02, 0.01)),
        # A step without a time takes as long as it takes.
        ((0.008, 0.005), 2.0, (0.016, 0.01, 0.01)),
    ],
)
def test_passes_keep_their_ratios_however_slow_ranks_are(
    one_rank: None,
    run: TrainingRun,
    passes_s: tuple[float, ...],
    slower: float,
    held_s: tuple[float, ...],
) -> None:
    timers = PacedTimers(cores=1.0)

    def one(microbatches: int) -> Iteration:
        for name in PASSES:
            timers.paces[name].taken_s += microbatches * [0.01]
        return _iteration()

    watch = Watch(one, lambda *_: None, [Series(1)], run)
    assert watch.warm_up(timers, (passes_s,))[1] == pytest.approx(slower)
    assert [timers.paces[name].hold_s for name in PASSES] == pytest.approx(held_s)


@pytest.mark.parametrize(
    ("times_s", "count", "precise"),
    [
        ([1.0, 1.0, 1.0, 1.0], 3, True),
        # The first is far off: after six the interval is still 8 % wide.
        ([1.2, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 6, False),
        # t(3) = 3.18: of four, s is 0.96 % and the interval 1.5 %; of three it is 2.4 % or more.
        ([1.0, 1.0175, 1.0, 1.0175, 1.0], 4, True),
    ],
)
def test_it_ends_when_the_mean_is_known(
    one_rank: None, run: TrainingRun, times_s: list[float], count: int, precise: bool
) -> None:
    watch, _ = _watch(run, map(_iteration, times_s))
    (series,) = watch.series
    while not series.ended(run):
        watch.record(series)
    assert len(series.iterations) == count
    assert series.precise(run) == precise


def test_without_a_most_it_is_the_number_asked_for(one_rank: None, run: TrainingRun) -> None:
    exactly = replace(run, most_iterations=None)
    watch, _ = _watch(exactly, map(_iteration, [1.0, 2.0, 3.0, 4.0]))
    (series,) = watch.series
    while not series.ended(exactly):
        watch.record(series)
    assert [one.time_s for one in series.iterations] == [1.0, 2.0, 3.0]


def test_a_disturbed_iteration_is_repeated_and_counted(one_rank: None, run: TrainingRun) -> None:
    found = [_iteration(3.0, 0.5), _iteration(2.0, 0.2), _iteration(1.0, 0.01)]
    watch, said = _watch(run, iter(found))
    (series,) = watch.series
    watch.record(series)
    assert series.iterations == [found[-1]]
    assert series.discarded == 2
    assert [words for words in said if "waiting, the machine is busy: " in words]


def test_a_load_that_never_ends_is_an_error_after_a_while(
    one_rank: None, run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PATIENCE_S", 0.0)
    endless: Callable[[], Iteration] = lambda: _iteration(1.0, 0.5)  # noqa: E731
    watch, _ = _watch(run, iter(endless, None))
    with pytest.raises(ReproError, match=r"a rank lost 50% of the time to other"):
        watch.record(watch.series[0])
