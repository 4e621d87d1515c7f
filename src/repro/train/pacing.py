"""Let an emulated GPU compute at a constant speed, in passes of any length.

An emulated GPU has a share of a core. What it computes in a pass takes it the CPU time that it
needs, at whatever moment the machine gives it; the pass is then held back until that CPU time would
be over at the share's pace. So a pass takes as long on one rank as on many, as long as the ranks'
shares leave some of the machine free.
"""

import time
from typing import Any

from megatron.core.timers import TimerBase, Timers

from repro.observe.other_work import stolen_s

# What a GPU computes.
_PASSES = ("forward-compute", "backward-compute", "optimizer")


class Pace:
    """Holds passes back until their CPU time is over at the pace of `cores` cores.

    `late_s` is how much later than that they were over, all together.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._wall_s = self._cpu_s = self.late_s = 0.0

    def begin(self) -> None:
        """A pass begins."""
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def end(self) -> tuple[float, float]:
        """A pass has been computed: wait, and return the seconds it took and its CPU time."""
        cpu_s = time.process_time() - self._cpu_s
        early_s = self._wall_s + cpu_s / self._cores - time.monotonic()
        self.late_s += max(0.0, -early_s)
        time.sleep(max(0.0, early_s))
        return time.monotonic() - self._wall_s, cpu_s


class PacedTimers(Timers):  # type: ignore[misc]
    """Megatron-Core's timers, of which those of computing wait until the pace's time is over.

    Parameters
    ----------
    cores : float
        The rank's share, in cores.
    log_level, log_option
        As Megatron-Core's.
    """

    def __init__(self, cores: float, log_level: int, log_option: str) -> None:
        super().__init__(log_level, log_option)
        # Passes come one after another, so they share a pace.
        self.pace = Pace(cores)
        self._paced: dict[str, _PacedTimer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of a name."""
        timer = super().__call__(name, log_level)
        if name not in _PASSES:
            return timer
        return self._paced.setdefault(name, _PacedTimer(timer, self.pace))


class _PacedTimer(TimerBase):  # type: ignore[misc]
    def __init__(self, timer: Any, pace: Pace) -> None:
        super().__init__(timer.name)
        self._timer, self._pace = timer, pace

    def start(self, barrier: bool = False) -> None:
        self._pace.begin()
        self._timer.start(barrier)

    def stop(self, barrier: bool = False) -> None:
        self._pace.end()
        self._timer.stop(barrier)

    def reset(self) -> None:
        self._timer.reset()

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        seconds: float = self._timer.elapsed(reset, barrier)
        return seconds


def lacked_so_far_s(timers: Timers) -> float:
    """What the machine has kept from this rank beyond its pace; 0 on a GPU.

    By how much passes were late, and what a virtual machine's host took. Between passes nothing is
    paced: there ranks wait for cores that they themselves keep busy with their traffic.
    """
    return timers.pace.late_s + stolen_s() if isinstance(timers, PacedTimers) else 0.0
