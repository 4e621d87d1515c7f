"""Several measurements that take turns on one set of ranks, and each one's own clock.

A machine's speed drifts. What is to be compared is measured in turns, between which only the links'
rates change, so that the drift meets all of it alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from repro.observe.nic import NicSeries


@dataclass
class Turns:
    """So many measurements take turns; at first it is that of number 0.

    `switch` returns when the links have another one's rates, so many times slower as everything
    is: `slower`.
    """

    count: int = 1
    switch: Callable[[int, float], None] = lambda *_: None
    slower: float = 1.0
    _now: tuple[int, float] = (0, 1.0)

    def begin(self, turn: int) -> None:
        """Let it be this one's turn."""
        if self._now != (now := (turn, self.slower)):
            self.switch(*now)
            self._now = now

    def rounds(self, ended: Callable[[int], bool]) -> Iterator[int]:
        """Whose turn it is, one measurement after the other, until all have ended."""
        going = list(range(self.count))
        while going:
            for turn in going:
                self.begin(turn)
                yield turn
            going = [turn for turn in going if not ended(turn)]


@dataclass(frozen=True)
class OwnClock:
    """Time in one measurement's own turns: the others' are cut out.

    `windows_s` are its turns, in time; the clock begins with the first and runs on from the end of
    one at the beginning of the next.
    """

    windows_s: tuple[tuple[float, float], ...]

    def __call__(self, time_s: float) -> float:
        """A time of the machine's clock, within a turn or after it, on this one."""
        gone = 0.0
        for number, (start, end) in enumerate(self.windows_s):
            last = number == len(self.windows_s) - 1
            if last or time_s < self.windows_s[number + 1][0]:
                return self.windows_s[0][0] + gone + (time_s - start)
            gone += end - start
        raise AssertionError("a clock without turns")

    def cut(self, series: NicSeries) -> NicSeries:
        """The counters in these turns, without what others' turns counted."""
        times = np.array(series.time_s)
        windows = []
        for start, end in self.windows_s:
            inside = times[(times > start) & (times < end)]
            at = np.concatenate([[start], inside, [end]])
            windows.append(np.vstack([at, series.at("received", at), series.at("sent", at)]))
        joined = _joined(windows)
        rx, tx = np.split(np.rint(joined[1:]).astype(int), 2)
        return NicSeries(
            time_s=(self.windows_s[0][0] + joined[0]).tolist(),
            rx_bytes=[tuple(row) for row in rx.T.tolist()],
            tx_bytes=[tuple(row) for row in tx.T.tolist()],
        )


def own_clocks(begun: Sequence[tuple[int, float]], end_s: float) -> dict[int, OwnClock]:
    """Each turn's clock, from when turns began, in time, and when the last one ended."""
    ends = [*(time_s for _, time_s in begun[1:]), end_s]
    windows: dict[int, list[tuple[float, float]]] = {}
    for (turn, start), end in zip(begun, ends, strict=True):
        windows.setdefault(turn, []).append((start, end))
    return {turn: OwnClock(tuple(found)) for turn, found in windows.items()}


def _joined(windows: list[np.ndarray]) -> np.ndarray:
    """Time and counters (row, sample) of windows from 0, the next one going on where the last one
    ended: that is one sample, not two."""
    total = np.zeros((windows[0].shape[0], 1))
    parts = [total]
    for window in windows:
        parts.append(window[:, 1:] - window[:, :1] + total)
        total = parts[-1][:, -1:]
    return np.concatenate(parts, axis=1)
