"""Let an emulated GPU compute at a constant speed, in passes of any length.

A CPU quota bounds what a rank computes in each of its periods, not how fast: after waiting, a rank
has a period's quota at hand and computes it as fast as the core can. A pipeline's passes are that
short, so its stages would be fast where they wait for others and slow where they do not. A paced
pass takes as long as its CPU time does at the quota's rate.
"""

import time
from typing import Any

from megatron.core.timers import TimerBase, Timers

# What a GPU computes.
_PASSES = ("forward-compute", "backward-compute", "optimizer")


class PacedTimers(Timers):  # type: ignore[misc]
    """Megatron-Core's timers, of which those of computing wait until the quota's time is over.

    Parameters
    ----------
    cores : float
        The rank's CPU quota.
    log_level, log_option
        As Megatron-Core's.
    """

    def __init__(self, cores: float, log_level: int, log_option: str) -> None:
        super().__init__(log_level, log_option)
        self._cores = cores
        self._paced: dict[str, _PacedTimer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of a name."""
        timer = super().__call__(name, log_level)
        if name not in _PASSES:
            return timer
        return self._paced.setdefault(name, _PacedTimer(timer, self._cores))


class _PacedTimer(TimerBase):  # type: ignore[misc]
    def __init__(self, timer: Any, cores: float) -> None:
        super().__init__(timer.name)
        self._timer, self._cores = timer, cores
        self._wall_s = self._cpu_s = 0.0

    def start(self, barrier: bool = False) -> None:
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()
        self._timer.start(barrier)

    def stop(self, barrier: bool = False) -> None:
        due = self._wall_s + (time.process_time() - self._cpu_s) / self._cores
        time.sleep(max(0.0, due - time.monotonic()))
        self._timer.stop(barrier)

    def reset(self) -> None:
        self._timer.reset()

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        seconds: float = self._timer.elapsed(reset, barrier)
        return seconds
