"""Time series of network adapters' byte counters, sampled in a thread."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from repro.errors import ReproError, one_line

SAMPLES_PER_S = 50

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
TrafficDirection = Literal["received", "sent"]


@dataclass
class NicSeries:
    """Samples of byte counters: `rx_bytes[i][column]` at `time_s[i]` on the monotonic clock.

    A column is the NIC of a node, or with `repro.observe.counters` an adapter of this node. Values
    are NaN where there is no counter.
    """

    time_s: list[float] = field(default_factory=list)
    rx_bytes: list[tuple[float, ...]] = field(default_factory=list)
    tx_bytes: list[tuple[float, ...]] = field(default_factory=list)

    def counters(self, direction: TrafficDirection) -> FloatArray:
        """Return the counters (column, sample) of one direction, in bytes."""
        samples = self.rx_bytes if direction == "received" else self.tx_bytes
        return np.array(samples, dtype=float).reshape(len(self.time_s), -1).T

    def at(self, direction: TrafficDirection, time_s: FloatArray | Sequence[float]) -> FloatArray:
        """Return the counters (column, time) at any times, interpolated between samples."""
        columns = [np.interp(time_s, self.time_s, column) for column in self.counters(direction)]
        return np.array(columns).reshape(-1, np.size(time_s))


@contextmanager
def sample_counters(read: Callable[[], Sequence[tuple[int, int]]]) -> Iterator[NicSeries]:
    """Sample counters in a thread within the context, and once more at its exit.

    Parameters
    ----------
    read : callable
        Returns (received, sent) bytes of each column.

    Raises
    ------
    ReproError
        `read` failed; the series ends there. Raised at the context's exit, so that the body is not
        interrupted. An exception of the body takes precedence.
    """
    series = NicSeries()
    stop = threading.Event()
    failures: list[Exception] = []

    def sample() -> None:
        now = time.monotonic()
        try:
            counters = read()
        except Exception as error:
            # An exception in a thread would only be printed.
            failures.append(error)
            return
        series.time_s.append(now)
        series.rx_bytes.append(tuple(received for received, _ in counters))
        series.tx_bytes.append(tuple(sent for _, sent in counters))

    def keep_sampling() -> None:
        due = time.monotonic()
        while not failures:
            due += 1 / SAMPLES_PER_S
            if stop.wait(max(0.0, due - time.monotonic())):
                return
            sample()

    thread = threading.Thread(target=keep_sampling, name="nic-sampler", daemon=True)
    # The thread may be late on a busy machine, so take a sample at the body's start and end.
    sample()
    thread.start()
    try:
        yield series
    finally:
        stop.set()
        thread.join()
        if not failures:
            sample()
    if failures:
        error = failures[0]
        raise ReproError(
            f"cannot read byte counters after {len(series.time_s)} samples "
            f"({type(error).__name__}: {one_line(error)}); fix: check the adapter and run again"
        ) from error


def interface_bytes(table: str, interface: str) -> tuple[int, int]:
    """Return an interface's received and sent bytes, from the text of `/proc/net/dev`.

    Raises
    ------
    OSError
        The text has no such interface.
    """
    for line in table.splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == interface:
            counters = fields.split()
            return int(counters[0]), int(counters[8])
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)


def own_interface_bytes(interface: str) -> tuple[int, int]:
    """Return received and sent bytes of an interface in this process's network namespace."""
    return interface_bytes(Path("/proc/self/net/dev").read_text(), interface)
