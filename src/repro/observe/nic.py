"""NIC byte counters, sampled into a time series while something runs."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

SAMPLES_PER_S = 50


@dataclass
class NicSeries:
    """Counters of every node's NIC: `rx_bytes[i][node]` at `time_s[i]` on the monotonic clock."""

    time_s: list[float] = field(default_factory=list)
    rx_bytes: list[tuple[int, ...]] = field(default_factory=list)
    tx_bytes: list[tuple[int, ...]] = field(default_factory=list)


@contextmanager
def sample_counters(read: Callable[[], Sequence[tuple[int, int]]]) -> Iterator[NicSeries]:
    """Sample in a thread as long as the context lasts; the series is complete at its exit.

    Parameters
    ----------
    read : callable
        Returns (received, sent) bytes of each node's NIC.
    """
    series = NicSeries()
    stop = threading.Event()

    def sample() -> None:
        due = time.monotonic()
        while True:
            now, counters = time.monotonic(), read()
            series.time_s.append(now)
            series.rx_bytes.append(tuple(received for received, _ in counters))
            series.tx_bytes.append(tuple(sent for _, sent in counters))
            due += 1 / SAMPLES_PER_S
            if stop.wait(max(0.0, due - time.monotonic())):
                return

    thread = threading.Thread(target=sample, name="nic-sampler", daemon=True)
    thread.start()
    try:
        yield series
    finally:
        stop.set()
        thread.join()


def interface_bytes(table: str, interface: str) -> tuple[int, int]:
    """Bytes that an interface received and sent, from the text of `/proc/net/dev`.

    Raises
    ------
    OSError
        There is no such interface.
    """
    for line in table.splitlines():
        name, _, fields = line.partition(":")
        if name.strip() == interface:
            counters = fields.split()
            return int(counters[0]), int(counters[8])
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
