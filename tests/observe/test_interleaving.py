"""Each measurement's own clock: the others' turns, and what was counted in them, are cut out."""

import numpy as np
import pytest

from repro.observe.nic import NicSeries
from repro.observe.interleaving import Turns, own_clocks

# Two measurements with two turns each, from 10 s to 20 s.
_BEGUN = [(0, 10.0), (1, 12.0), (0, 15.0), (1, 16.0)]
_END_S = 20.0


def test_own_time_runs_on_where_the_last_turn_ended() -> None:
    clocks = own_clocks(_BEGUN, _END_S)
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
    # 100 bytes a second in turns of the one, 7 in those of the other, on two nodes.
    times = np.arange(9.8, 20.2, 0.3)
    rate = np.where(((times < 12) | ((times >= 15) & (times < 16))), 100.0, 7.0)
    counted = np.cumsum(rate) * 0.3
    rows = [(int(1e6 * value), int(2e6 * value)) for value in counted]
    series = NicSeries(times.tolist(), rows, rows)
    clocks = own_clocks(_BEGUN, _END_S)
    cuts = {turn: clock.cut(series) for turn, clock in clocks.items()}
    whole = series.at("sent", [_END_S]) - series.at("sent", [10.0])
    own = [np.array(cut.tx_bytes[-1]) - np.array(cut.tx_bytes[0]) for cut in cuts.values()]
    np.testing.assert_allclose(np.sum(own, axis=0), whole[:, 0], atol=8)
    for turn, cut in cuts.items():
        # No time twice, between which there would be no rate.
        assert (np.diff(cut.time_s) > 0).all()
        length = sum(end - start for start, end in clocks[turn].windows_s)
        assert cut.time_s[-1] - cut.time_s[0] == pytest.approx(length)
        assert (np.diff(np.array(cut.rx_bytes), axis=0) >= 0).all()


def test_links_are_set_only_when_the_turn_or_their_speed_changes() -> None:
    switched: list[tuple[int, float]] = []
    turns = Turns(2, lambda turn, slower: switched.append((turn, slower)))
    for turn in (0, 0, 1, 1, 0):
        turns.begin(turn)
    turns.slower = 1.5
    for turn in (0, 0, 1):
        turns.begin(turn)
    assert switched == [(1, 1.0), (0, 1.0), (0, 1.5), (1, 1.5)]
