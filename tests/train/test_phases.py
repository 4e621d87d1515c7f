"""Phases from timers of known times."""

import pytest

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.train.phases import create_timers, read_phases, reset_timers

_TIMES_S = {
    "forward-compute": 1.0,
    "backward-compute": 2.0,
    "forward-recv": 0.1,
    "forward-send": 0.2,
    "backward-recv": 0.3,
    "backward-send": 0.4,
    "forward-send-backward-recv": 0.5,
    "backward-send-forward-recv": 0.6,
    "forward-all-to-all": 0.7,
    "backward-all-to-all": 0.9,
    "straggler-wait": 3.0,
    "parameter-all-gather": 1.5,
    "tensor-all-reduce": 0.25,
    "encode": 0.5,
    "decode": 0.75,
    "gradient-sync": 4.0,
    "all-grads-sync": 2.5,
    "optimizer": 5.0,
}


def test_phases_of_a_pipeline() -> None:
    timers = create_timers()
    for name, seconds in _TIMES_S.items():
        timers(name).set_elapsed(seconds)
    phases, messages = read_phases(timers, 30.0, pipeline=True)
    expected = {
        "forward compute": 1.0,
        "backward compute": 2.0,
        "forward receive": 0.1 + 0.6,
        "backward receive": 0.3 + 0.5,
        "send": 0.2 + 0.4,
        "forward all-to-all": 0.7,
        "backward all-to-all": 0.9,
        "tensor all-reduce": 0.25,
        "encode": 0.5,
        "decode": 0.75,
        "straggler wait": 3.0,
        "embedding sync": 4.0 - 2.5,
        "gradient sync": 2.5,
        "optimizer": 5.0,
        "parameter all-gather": 1.5,
        "other": 30.0 - 21.7,
    }
    assert phases == pytest.approx(expected)
    assert tuple(phases) == PHASES
    assert messages == {name: _TIMES_S[name] for name in P2P_TIMERS}
    # Reading begins anew.
    assert set(read_phases(timers, 0.0, pipeline=True)[0].values()) == {0.0}


def test_without_a_pipeline_all_between_the_barriers_is_gradient_sync() -> None:
    timers = create_timers()
    for name in ("gradient-sync", "all-grads-sync"):
        timers(name).set_elapsed(_TIMES_S[name])
    phases, messages = read_phases(timers, 6.0)
    assert phases["gradient sync"] == 4.0
    assert phases["other"] == 2.0
    assert sum(phases.values()) == 6.0
    assert not any(messages.values())


def test_what_was_timed_can_be_forgotten() -> None:
    timers = create_timers()
    for name, seconds in _TIMES_S.items():
        timers(name).set_elapsed(seconds)
    reset_timers(timers)
    assert set(read_phases(timers, 0.0, pipeline=True)[0].values()) == {0.0}
