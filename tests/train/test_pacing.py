"""Paced passes take the time that their CPU time has at the pace, however short."""

import time

import numpy as np
import pytest

from repro.train.pacing import (
    PacedTimers,
    hold_passes,
    lacked_so_far_s,
    pass_times_s,
    pause,
    resume,
    slowed,
)
from repro.train.phases import create_timers, encoding

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("cuda_means_cpu")]


def _compute(cpu_s: float) -> float:
    begin = time.process_time()
    while time.process_time() - begin < cpu_s:
        sum(range(100))
    return time.process_time() - begin


@pytest.mark.parametrize("cpu_s", [0.001, 0.01])
def test_a_pass_takes_its_cpu_time_at_the_pace(cpu_s: float) -> None:
    timers = PacedTimers(0.1)
    timers("forward-compute", log_level=2).start()
    used = _compute(cpu_s)
    timers("forward-compute").stop()
    # A busy machine makes it longer, nothing makes it shorter.
    assert timers("forward-compute").elapsed() >= 0.99 * used / 0.1


def test_waiting_buys_no_faster_pass() -> None:
    timers = PacedTimers(0.1)
    time.sleep(0.1)
    timers("backward-compute", log_level=2).start()
    used = _compute(0.002)
    timers("backward-compute").stop()
    assert timers("backward-compute").elapsed() >= 0.99 * used / 0.1


def test_requested_times_keep_their_ratios() -> None:
    needed = np.array([[0.2, 0.3, 0.5], [0.3, 0.6, 0.1]])
    times, factor = slowed(needed, [[0.1, 0.2], [0.2, 0.4]])
    assert factor == pytest.approx(2.0)
    assert times == pytest.approx(np.array([[0.2, 0.4, 0.5], [0.4, 0.8, 0.1]]))
    _, none = slowed(needed, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert none == 1.0, "links were not checked at faster rates"
    assert slowed(needed, [])[0] is needed


def test_messages_are_not_paced() -> None:
    timers = PacedTimers(0.001)
    timers("forward-recv", log_level=2).start()
    _compute(0.002)
    timers("forward-recv").stop()
    assert timers("forward-recv").elapsed() < 1.0, "paced, it would take 2 s"


def test_once_held_every_pass_takes_as_long() -> None:
    timers = PacedTimers(0.5)
    forward = timers("forward-compute", log_level=2)
    hold_passes(timers, [0.05, 0.0, 0.0])
    late_s = 0.0
    for cpu_s in (0.001, 0.01):
        forward.start()
        _compute(cpu_s)
        forward.stop()
        took_s = forward.elapsed()
        assert took_s >= 0.99 * 0.05
        late_s += max(0.0, took_s - 0.05)
    assert lacked_so_far_s(timers) <= late_s


def test_passes_are_noted_until_they_are_held() -> None:
    timers = PacedTimers(0.5)
    forward = timers("forward-compute", log_level=2)
    for cpu_s in (0.001, 0.01):
        forward.start()
        _compute(cpu_s)
        forward.stop()
    # At the pace, or as long as the machine made them wait.
    assert pass_times_s(timers)[0] >= 0.99 * (0.001 + 0.01) / 2 / 0.5
    hold_passes(timers, [0.02, 0.0, 0.0])
    forward.start()
    forward.stop()
    assert np.isnan(pass_times_s(timers)[0])


def test_a_late_pass_lacked_what_it_was_late() -> None:
    timers = PacedTimers(0.5)
    backward = timers("backward-compute", log_level=2)
    hold_passes(timers, [0.0, 0.02, 0.0])
    began_s = time.monotonic()
    backward.start()
    # Whatever keeps the rank from its core: here it sleeps.
    time.sleep(0.1)
    backward.stop()
    assert 0.1 - 0.02 <= lacked_so_far_s(timers) <= time.monotonic() - began_s - 0.02


def test_what_interrupts_a_pass_is_none_of_it() -> None:
    timers = PacedTimers(0.5)
    forward = timers("forward-compute", log_level=2)
    began_s = time.monotonic()
    forward.start()
    _compute(0.01)
    pause(forward)
    _compute(0.03)
    time.sleep(0.05)
    resume(forward)
    _compute(0.01)
    forward.stop()
    all_s, taken_s, timed_s = time.monotonic() - began_s, pass_times_s(timers)[0], forward.elapsed()
    for pass_s in (taken_s, timed_s):
        assert 0.99 * 0.02 / 0.5 <= pass_s <= all_s - 0.08
    hold_passes(timers, [0.04, 0.0, 0.0])
    before_s, began_s = lacked_so_far_s(timers), time.monotonic()
    forward.start()
    pause(forward)
    time.sleep(0.1)
    resume(forward)
    forward.stop()
    late_s = max(0.0, time.monotonic() - began_s - 0.1 - 0.04)
    assert lacked_so_far_s(timers) - before_s <= late_s, "an interruption counts as being late"


def test_messages_are_encoded_at_the_pace_and_out_of_what_they_interrupt() -> None:
    timers = create_timers(0.5)
    # As a warm-up leaves them.
    hold_passes(timers, [0.1, 0.0, 0.0])
    sync, forward = timers("gradient-sync"), timers("forward-compute", log_level=2)
    begun_s = time.monotonic()
    sync.start()
    forward.start()
    with encoding(timers):
        used = _compute(0.02)
    coded_s = time.monotonic() - begun_s
    forward.stop()
    sync.stop()
    assert coded_s >= timers("encode").elapsed() >= 0.99 * used / 0.5
    # Held for 0.1 s, which encoding is no part of, in the sync as in the pass.
    assert forward.elapsed() >= 0.099
    assert sync.elapsed() <= time.monotonic() - begun_s - 0.95 * used / 0.5
