"""Interleaved measurements on one set of ranks, and a clock of each one's active time.

A machine's speed drifts. Runs that are compared are interleaved, and only the link rates change
between them, so that drift affects all runs alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repro.observe.nic import NicSeries


@dataclass
class InterleavedRuns:
    """Measurements that alternate on the same ranks; run 0 is active at first.

    Attributes
    ----------
    count
        Number of runs.
    switch
        Called with (run, slowdown); returns when the links have that run's rates, divided by
        `slowdown`.
    slowdown
        Factor by which compute passes take longer than on one rank that runs alone.
    """

    count: int = 1
    switch: Callable[[int, float], None] = lambda *_: None
    slowdown: float = 1.0
    _active: tuple[int, float] = (0, 1.0)

    def activate(self, run: int) -> None:
        """Switch the links to a run, unless they already have its rates."""
        if self._active != (active := (run, self.slowdown)):
            self.switch(*active)
            self._active = active

    def round_robin(self, ended: Callable[[int], bool]) -> Iterator[int]:
        """Activate and yield each run in turn, until `ended` is true for all of them."""
        remaining = list(range(self.count))
        while remaining:
            for run in remaining:
                self.activate(run)
                yield run
            remaining = [run for run in remaining if not ended(run)]


@dataclass(frozen=True)
class ActiveClock:
    """Clock of one run's active time, without the time of other runs.

    `windows_s` are the run's (start, end) times on the machine's clock, in order. The clock starts
    at the first start, and continues at each next start from the previous end.
    """

    windows_s: tuple[tuple[float, float], ...]

    def __call__(self, time_s: float) -> float:
        """Convert a time of the machine's clock, within a window or after it, to this clock."""
        before_s = 0.0
        for number, (start, end) in enumerate(self.windows_s):
            last = number == len(self.windows_s) - 1
            if last or time_s < self.windows_s[number + 1][0]:
                return self.windows_s[0][0] + before_s + (time_s - start)
            before_s += end - start
        raise AssertionError("a clock without windows")

    def cut(self, series: NicSeries) -> NicSeries:
        """Return the counters within the windows, without bytes of other runs."""
        times = np.array(series.time_s)
        windows = []
        for start, end in self.windows_s:
            inside = times[(times > start) & (times < end)]
            at = np.concatenate([[start], inside, [end]])
            windows.append(np.vstack([at, series.at("received", at), series.at("sent", at)]))
        joined = _join(windows)
        rx, tx = np.split(np.rint(joined[1:]).astype(int), 2)
        return NicSeries(
            time_s=(self.windows_s[0][0] + joined[0]).tolist(),
            rx_bytes=[tuple(row) for row in rx.T.tolist()],
            tx_bytes=[tuple(row) for row in tx.T.tolist()],
        )


def active_clocks(begun: Sequence[tuple[int, float]], end_s: float) -> dict[int, ActiveClock]:
    """Return each run's clock, from the (run, start time) of all windows and the last one's end."""
    ends = [*(time_s for _, time_s in begun[1:]), end_s]
    windows: dict[int, list[tuple[float, float]]] = {}
    for (run, start), end in zip(begun, ends, strict=True):
        windows.setdefault(run, []).append((start, end))
    return {run: ActiveClock(tuple(times)) for run, times in windows.items()}


def _join(windows: list[np.ndarray]) -> np.ndarray:
    """Join windows of time and counters (row, sample), starting at 0.

    A window continues from the end of the one before it; the two are one sample, not two.
    """
    total = np.zeros((windows[0].shape[0], 1))
    parts = [total]
    for window in windows:
        parts.append(window[:, 1:] - window[:, :1] + total)
        total = parts[-1][:, -1:]
    return np.concatenate(parts, axis=1)
