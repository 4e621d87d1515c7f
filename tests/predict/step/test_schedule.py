"""1F1B timelines against closed forms, a timeline by hand, and a schedule that never blocks."""

import numpy as np
import pytest
from examples import rows
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.phases import P2P_TIMERS
from repro.predict.step.iteration import bubble_s
from repro.predict.step.schedule import Timeline, run_1f1b
from repro.predict.workload import Array, Plan

_STAGES = pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
_MICRO_BATCHES = pytest.mark.parametrize("micro_batches", [1, 2, 3, 7, 8, 20])
# Powers of two: sums of them are exact.
_FORWARD, _BACKWARD, _HOP = 1.0, 2.0, 0.125


def _uniform(stages: int, micro_batches: int, hop: float = 0.0) -> Timeline:
    return run_1f1b(
        np.full(stages, _FORWARD),
        np.full(stages, _BACKWARD),
        np.full(stages - 1, hop),
        np.full(stages - 1, hop),
        micro_batches,
    )


def _timer(timeline: Timeline, name: str) -> Array:
    values: Array = timeline.timer_s[:, P2P_TIMERS.index(name)]
    return values


def _wire(timeline: Timeline, name: str) -> Array:
    values: Array = timeline.wire_s[:, P2P_TIMERS.index(name)]
    return values


@_STAGES
@_MICRO_BATCHES
def test_a_uniform_pipeline_without_messages(stages: int, micro_batches: int) -> None:
    # Narayanan et al., SC 2021, section 2.2.1: m (f + b), and (p - 1) (f + b) of bubble.
    found = _uniform(stages, micro_batches)
    assert found.end_s.max() == (micro_batches + stages - 1) * (_FORWARD + _BACKWARD)
    assert found.end_s.argmax() == 0
    assert (found.wire_s == 0).all()


@_STAGES
@_MICRO_BATCHES
def test_the_closed_form_of_the_bubble(stages: int, micro_batches: int) -> None:
    w = rows(Plan(global_batch_size=micro_batches, pipeline_parallel=stages))
    both, free = np.array([_FORWARD + _BACKWARD]), np.zeros(1)
    bubble = bubble_s(w, first=both, middle=both, last=both, receive=free)
    found = _uniform(stages, micro_batches).end_s.max()
    assert found == micro_batches * (_FORWARD + _BACKWARD) + bubble[0]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@_MICRO_BATCHES
def test_hops_of_a_uniform_pipeline(stages: int, micro_batches: int) -> None:
    # One micro batch goes all the way up and down. Each further one adds, in a pipeline of two, one
    # exchange, in which both directions travel together; a stage between two others has two, one
    # with each neighbour, of which the second micro batch's first is hidden behind the fill.
    hops = 2 * (stages - 1)
    if micro_batches > 1:
        hops = micro_batches + 1 if stages == 2 else 2 * (micro_batches + stages) - 5
    computed = (micro_batches + stages - 1) * (_FORWARD + _BACKWARD)
    found = _uniform(stages, micro_batches, _HOP).end_s.max()
    assert found == computed + hops * _HOP


def test_one_stage_calls_nobody() -> None:
    found = _uniform(1, 5)
    assert found.end_s == [5 * (_FORWARD + _BACKWARD)]
    assert (found.timer_s == 0).all()


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@_MICRO_BATCHES
def test_fill_and_drain(stages: int, micro_batches: int) -> None:
    found = _uniform(stages, micro_batches, _HOP)
    fill = (stages - 1) * (_FORWARD + _HOP)
    assert _timer(found, "forward-recv")[-1] == fill
    # From the last stage's last pass to the first's; its own send is the first of the hops.
    drain = (stages - 1) * (_BACKWARD + _HOP)
    assert found.end_s[0] - (found.end_s[-1] - _HOP) == drain


@given(st.data())
def test_the_fill_of_uneven_stages(data: st.DataObject) -> None:
    forward, backward, up, down, micro_batches = _drawn(data)
    found = run_1f1b(forward, backward, up, down, micro_batches)
    expected = (forward[:-1] + up).sum()
    assert _timer(found, "forward-recv")[-1] == pytest.approx(expected, rel=1e-12)


def _drawn(data: st.DataObject) -> tuple[Array, Array, Array, Array, int]:
    stages = data.draw(st.integers(1, 6))
    times = st.floats(0.01, 10)

    def some(count: int) -> Array:
        return np.array(data.draw(st.lists(times, min_size=count, max_size=count)))

    micro_batches = data.draw(st.integers(1, 12))
    return some(stages), some(stages), some(stages - 1), some(stages - 1), micro_batches


@given(st.data())
def test_timers_and_passes_fill_each_stages_time(data: st.DataObject) -> None:
    forward, backward, up, down, micro_batches = _drawn(data)
    found = run_1f1b(forward, backward, up, down, micro_batches)
    spans = micro_batches * (forward + backward) + found.timer_s.sum(axis=1)
    np.testing.assert_allclose(spans, found.end_s, rtol=1e-12)
    assert (found.timer_s >= found.wire_s).all() and (found.wire_s >= 0).all()


@given(st.data())
def test_every_message_is_on_the_wire_at_both_ends(data: st.DataObject) -> None:
    forward, backward, up, down, micro_batches = _drawn(data)
    found = run_1f1b(forward, backward, up, down, micro_batches)
    stages = len(forward)
    # Stage i sends so many micro batches ahead of its first backward pass.
    ahead = np.minimum(stages - 1 - np.arange(stages - 1), micro_batches)
    both = np.maximum(up, down)
    for name, other_end, count, message in (
        ("forward-send", "forward-recv", ahead, up),
        ("backward-recv", "backward-send", ahead, down),
        (
            "forward-send-backward-recv",
            "backward-send-forward-recv",
            micro_batches - ahead,
            both,
        ),
    ):
        np.testing.assert_allclose(_wire(found, name)[:-1], count * message, rtol=1e-12)
        np.testing.assert_allclose(_wire(found, other_end)[1:], count * message, rtol=1e-12)


def test_a_slow_stage_bounds_the_steady_state() -> None:
    for slow in range(4):
        forward, backward = np.full(4, _FORWARD), np.full(4, _BACKWARD)
        forward[slow], backward[slow] = 2.0, 4.0
        few, many = (
            run_1f1b(forward, backward, np.zeros(3), np.zeros(3), count).end_s.max()
            for count in (20, 50)
        )
        assert many - few == 30 * 6.0
        assert few >= 20 * 6.0


@given(st.data())
def test_no_stage_is_faster_than_its_work_and_its_way(data: st.DataObject) -> None:
    forward, backward, up, down, micro_batches = _drawn(data)
    found = run_1f1b(forward, backward, up, down, micro_batches)
    for stage in range(len(forward)):
        way = (forward + backward)[:stage].sum() + (up + down)[:stage].sum()
        work = micro_batches * (forward + backward)[stage]
        assert found.end_s.max() >= (way + work) * (1 - 1e-12)


def test_two_stages_and_two_micro_batches_by_hand() -> None:
    found = run_1f1b(
        np.array([1.0, 2.0]), np.array([2.0, 3.0]), np.array([0.5]), np.array([0.25]), 2
    )
    # The first stage: F 0-1, send -1.5, F -2.5, exchange 6.5-7, B -9, receive 12-12.25, B -14.25.
    # The second: receive 1-1.5, F -3.5, B -6.5, exchange -7, F -9, B -12, send -12.25.
    first = {"forward-send": 0.5, "forward-send-backward-recv": 4.5, "backward-recv": 3.25}
    second = {"forward-recv": 1.5, "backward-send-forward-recv": 0.5, "backward-send": 0.25}
    for stage, timers in enumerate((first, second)):
        assert found.timer_s[stage].tolist() == [timers.get(name, 0.0) for name in P2P_TIMERS]
    wire = {"forward-send": 0.5, "forward-send-backward-recv": 0.5, "backward-recv": 0.25}
    assert found.wire_s[0].tolist() == [wire.get(name, 0.0) for name in P2P_TIMERS]
    assert found.end_s.tolist() == [14.25, 12.25]


def test_blocked_senders_cost_time() -> None:
    # A slow second stage: the first, which may send three micro batches ahead, waits to hand them
    # over; one that could leave them would be done earlier.
    forward, backward = np.array([1.0, 8.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 1.0])
    found = run_1f1b(forward, backward, np.zeros(3), np.zeros(3), 3)
    # It computes 1, hands over, computes 1, and is rid of it when the second is done at 9.
    assert _timer(found, "forward-send")[0] == 7.0 + 7.0


def test_trailing_axes_are_runs_of_their_own() -> None:
    generator = np.random.default_rng(0)
    forward, backward = generator.uniform(1, 2, (2, 4, 5, 1))
    up, down = generator.uniform(0, 0.5, (2, 3, 1, 3))
    together = run_1f1b(forward, backward, up, down, 6)
    assert together.end_s.shape == (4, 5, 3)
    for i in range(5):
        for j in range(3):
            alone = run_1f1b(forward[:, i, 0], backward[:, i, 0], up[:, 0, j], down[:, 0, j], 6)
            np.testing.assert_array_equal(together.end_s[:, i, j], alone.end_s)
            np.testing.assert_array_equal(together.timer_s[:, :, i, j], alone.timer_s)
