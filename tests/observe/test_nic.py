"""Sampling of counters: complete, ordered, and stopped when the context ends."""

import itertools
import threading
import time

import numpy as np
import pytest
from waiting import PATIENCE_S

from repro.errors import ReproError
from repro.observe.nic import SAMPLES_PER_S, sample_counters


def test_samples_are_taken_at_their_rate_from_begin_to_end() -> None:
    counter = itertools.count()
    begin = time.monotonic()
    with sample_counters(lambda: [(next(counter), 7), (0, 0)]) as series:
        time.sleep(1.0)
    end = time.monotonic()
    assert begin <= series.time_s[0] and series.time_s[-1] <= end
    assert all(np.diff(series.time_s) > 0)
    # At least the 20 Hz that the experiments promise, on however busy a machine.
    assert 20 < len(series.time_s) <= SAMPLES_PER_S * (end - begin) + 2
    assert [rx[0] for rx in series.rx_bytes] == list(range(len(series.time_s)))
    assert {tx[0] for tx in series.tx_bytes} == {7}
    assert not any(thread.name == "nic-sampler" for thread in threading.enumerate())


def test_a_reader_that_fails_is_an_error_at_the_end_of_the_context() -> None:
    answers, asked = iter([[(1, 2)], [(3, 4)]]), itertools.count()
    finished, failed = False, threading.Event()

    def read() -> list[tuple[int, int]]:
        if next(asked) == 2:
            failed.set()
        return next(answers)

    with (
        pytest.raises(ReproError, match=r"after 2 samples .*StopIteration") as caught,
        sample_counters(read) as series,
    ):
        finished = failed.wait(PATIENCE_S)
    assert finished
    assert isinstance(caught.value.__cause__, StopIteration)
    assert series.rx_bytes == [(1,), (3,)]
    assert series.tx_bytes == [(2,), (4,)]
    assert len(series.time_s) == 2


def test_an_exception_of_what_runs_goes_before_that_of_the_reader() -> None:
    def broken() -> list[tuple[int, int]]:
        raise OSError("gone")

    with pytest.raises(KeyError), sample_counters(broken):
        time.sleep(0.1)
        raise KeyError("inside")
