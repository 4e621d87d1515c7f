"""Pairing of message ends with answers known in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from repro.catalog.phases import P2P_TIMERS
from repro.errors import ReproError
from repro.observe.messages import Direction, Message, MessageEnd, pair_messages, wire_time_s


def _end(
    peer: int,
    posted_s: float,
    completed_s: float,
    *,
    timer: str,
    sends: bool,
    call: int = 0,
    iteration: int = 0,
    direction: Direction = "forward",
    size_bytes: int = 100,
) -> MessageEnd:
    return MessageEnd(
        iteration, timer, call, direction, peer, size_bytes, sends, posted_s, completed_s
    )


def test_a_message_is_under_way_from_the_later_post_to_its_receipt() -> None:
    late_receiver = (
        [_end(1, 1.0, 4.0, timer="forward-send", sends=True)],
        [_end(0, 3.0, 3.5, timer="forward-recv", sends=False)],
    )
    assert pair_messages(late_receiver) == (Message(0, "forward", 0, 1, 100, 3.0, 3.5),)
    late_sender = (
        [_end(1, 3.0, 3.25, timer="forward-send", sends=True)],
        [_end(0, 1.0, 3.5, timer="forward-recv", sends=False)],
    )
    assert pair_messages(late_sender) == (Message(0, "forward", 0, 1, 100, 3.0, 3.5),)


def test_messages_of_one_way_pair_in_order_and_ways_do_not_mix() -> None:
    sender = [
        _end(1, 1.0, 2.0, timer="forward-send", sends=True, size_bytes=1),
        _end(1, 3.0, 4.0, timer="forward-send", sends=True, size_bytes=2, call=1),
        _end(1, 5.0, 6.0, timer="backward-recv", sends=False, direction="backward", call=2),
        _end(1, 11.0, 12.0, timer="forward-send", sends=True, size_bytes=3, iteration=1),
    ]
    receiver = [
        _end(0, 0.0, 2.0, timer="forward-recv", sends=False, size_bytes=1),
        _end(0, 2.5, 4.0, timer="forward-recv", sends=False, size_bytes=2, call=1),
        _end(0, 5.5, 6.0, timer="backward-send", sends=True, direction="backward", call=2),
        _end(0, 10.0, 12.0, timer="forward-recv", sends=False, size_bytes=3, iteration=1),
    ]
    assert pair_messages([sender, receiver]) == (
        Message(0, "backward", 1, 0, 100, 5.5, 6.0),
        Message(0, "forward", 0, 1, 1, 1.0, 2.0),
        Message(0, "forward", 0, 1, 2, 3.0, 4.0),
        Message(1, "forward", 0, 1, 3, 11.0, 12.0),
    )


def _exchange() -> list[list[MessageEnd]]:
    """Ranks 0 and 1 swap messages in one call each, twice; rank 1 is late, rank 0 once later.

    First call: rank 0 posts at 0, rank 1 at 10. Activations arrive at 13 and gradients at 12, so
    messages are under way from 10 to 13; rank 0 is done at 12.5, before its peer's receipt.
    Second call: both at 20; activations arrive at 21 and gradients at 24.
    """
    down, up = "forward-send-backward-recv", "backward-send-forward-recv"
    return [
        [
            _end(1, 0.0, 12.0, timer=down, sends=False, direction="backward"),
            _end(1, 0.0, 12.5, timer=down, sends=True),
            _end(1, 20.0, 24.0, timer=down, sends=False, direction="backward", call=1),
            _end(1, 20.0, 24.0, timer=down, sends=True, call=1),
        ],
        [
            _end(0, 10.0, 13.0, timer=up, sends=False),
            _end(0, 10.0, 13.0, timer=up, sends=True, direction="backward"),
            _end(0, 20.0, 21.0, timer=up, sends=False, call=1),
            _end(0, 20.0, 24.5, timer=up, sends=True, direction="backward", call=1),
        ],
    ]


def test_wire_time_is_the_union_of_a_calls_messages_within_the_call() -> None:
    wire = wire_time_s(_exchange(), 2)
    assert wire.shape == (2, 2, len(P2P_TIMERS))
    expected = np.zeros_like(wire)
    expected[0, 0, P2P_TIMERS.index("forward-send-backward-recv")] = (12.5 - 10) + (24 - 20)
    expected[0, 1, P2P_TIMERS.index("backward-send-forward-recv")] = (13 - 10) + (24 - 20)
    np.testing.assert_allclose(wire, expected)


def test_messages_of_different_calls_do_not_hide_each_other() -> None:
    ends = [
        [
            _end(1, 0.0, 5.0, timer="forward-send", sends=True),
            _end(1, 5.0, 6.0, timer="forward-send", sends=True, call=1),
        ],
        [
            _end(0, 2.0, 5.0, timer="forward-recv", sends=False),
            _end(0, 5.5, 7.0, timer="forward-recv", sends=False, call=1),
        ],
    ]
    wire = wire_time_s(ends, 1)[0]
    assert wire[0, P2P_TIMERS.index("forward-send")] == pytest.approx(3.0 + 0.5)
    assert wire[1, P2P_TIMERS.index("forward-recv")] == pytest.approx(3.0 + 1.5)


def test_without_messages_there_is_no_wire_time() -> None:
    assert pair_messages([(), ()]) == ()
    assert not wire_time_s([(), ()], 3).any()


def test_a_message_without_its_other_end_is_an_error() -> None:
    first, second = _exchange()
    lost = "iteration 0, backward, rank 1 to rank 0: 1 messages were sent and 2 received"
    with pytest.raises(ReproError, match=lost):
        pair_messages([first, second[:-1]])
    alone = "forward, rank 0 to rank 1: 0 messages were sent and 1 received"
    with pytest.raises(ReproError, match=alone):
        wire_time_s([[], second[:1]], 1)
    changed = [second[0], second[1], replace(second[2], size_bytes=7), second[3]]
    differ = "rank 0 to rank 1: 100 bytes were sent and 7 received; fix: pass the complete logs"
    with pytest.raises(ReproError, match=differ):
        pair_messages([first, changed])
