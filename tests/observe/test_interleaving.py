"""Interleaved runs: switching of links, and active clocks without the time of other runs."""

import numpy as np
import pytest

from repro.observe.interleaving import InterleavedRuns, active_clocks
from repro.observe.nic import NicSeries

# Two runs with two windows each, from 10 s to 20 s.
_BEGUN = [(0, 10.0), (1, 12.0), (0, 15.0), (1, 16.0)]
_END_S = 20.0


def test_active_time_continues_from_the_end_of_the_last_window() -> None:
    clocks = active_clocks(_BEGUN, _END_S)
    assert [clocks[0](time_s) for time_s in (10.0, 11.5, 15.0, 15.5, 16.0)] == [
        10.0,
        11.5,
        12.0,
        12.5,
        13.0,
    ]
    assert clocks[1](12.0) == 12.0
    assert clocks[1](16.0) == 15.0
    assert clocks[1](_END_S) == 19.0


def test_no_byte_is_lost_or_counted_twice() -> None:
    # 100 bytes per second in windows of run 0, 7 in those of run 1, on two nodes.
    times = np.arange(9.8, 20.2, 0.3)
    rate = np.where(((times < 12) | ((times >= 15) & (times < 16))), 100.0, 7.0)
    counted = np.cumsum(rate) * 0.3
    rows = [(int(1e6 * value), int(2e6 * value)) for value in counted]
    series = NicSeries(times.tolist(), rows, rows)
    clocks = active_clocks(_BEGUN, _END_S)
    cuts = {run: clock.cut(series) for run, clock in clocks.items()}
    total = series.at("sent", [_END_S]) - series.at("sent", [10.0])
    active = [np.array(cut.tx_bytes[-1]) - np.array(cut.tx_bytes[0]) for cut in cuts.values()]
    np.testing.assert_allclose(np.sum(active, axis=0), total[:, 0], atol=8)
    for run, cut in cuts.items():
        # No time occurs twice: a rate needs a difference.
        assert (np.diff(cut.time_s) > 0).all()
        length = sum(end - start for start, end in clocks[run].windows_s)
        assert cut.time_s[-1] - cut.time_s[0] == pytest.approx(length)
        assert (np.diff(np.array(cut.rx_bytes), axis=0) >= 0).all()


def test_links_are_set_only_when_the_run_or_the_slowdown_changes() -> None:
    switched: list[tuple[int, float]] = []
    runs = InterleavedRuns(2, lambda run, slowdown: switched.append((run, slowdown)))
    for run in (0, 0, 1, 1, 0):
        runs.activate(run)
    runs.slowdown = 1.5
    for run in (0, 0, 1):
        runs.activate(run)
    assert switched == [(1, 1.0), (0, 1.0), (0, 1.5), (1, 1.5)]
