"""Pacing of an emulated GPU: a constant compute speed, in passes of any length.

An emulated GPU has a CPU share. After each pass the rank sleeps until CPU time / share has elapsed
since the pass began. So a pass takes as long on one rank as on many, if the shares of all ranks
leave some of the machine free.

The CPU time of the same pass varies by a tenth, with the machine's caches and clocks, and stages of
a pipeline have other ratios on a CPU than on a GPU. So after the warm-up every pass of a kind is
throttled to a fixed time. If ranks need more than requested for any of them, time itself is slower
on these ranks, and so are their links.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from megatron.core.timers import TimerBase, Timers

from repro.observe.nic import FloatArray
from repro.train.megatron.timers import RunningTimers

# Timers of the compute passes of a GPU.
PASSES = ("forward-compute", "backward-compute", "optimizer")
# Timers of the compute for messages, which differ in size: none has a fixed time.
CODING = ("encode", "decode")


class Pace:
    """Throttle of passes: each takes its CPU time over `cores` cores.

    `taken_s` are the times of passes. With `hold_s` every pass takes that long instead, and its
    time is not recorded. `late_s` is the total time by which passes ended late.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        # Wall and CPU clock when the pass began, plus the time of its interruptions.
        self._wall_s = self._cpu_s = self.late_s = 0.0
        self._paused_s = (0.0, 0.0)
        self.taken_s: list[float] = []
        self.hold_s: float | None = None

    def begin(self) -> None:
        """Begin a pass."""
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def pause(self) -> None:
        """Interrupt the pass after a part of it.

        Wait for the part's time as after a whole pass, but at most until the pass's time is over.
        """
        cpu_s, wall_s = self._so_far_s()
        part_s = cpu_s / self._cores
        if self.hold_s is not None:
            part_s = min(part_s, self.hold_s)
        time.sleep(max(0.0, part_s - wall_s))
        self._paused_s = self._so_far_s()

    def resume(self) -> None:
        """Resume the pass."""
        now_s = self._so_far_s()
        self._cpu_s += now_s[0] - self._paused_s[0]
        self._wall_s += now_s[1] - self._paused_s[1]

    def end(self) -> tuple[float, float]:
        """End a pass: wait, and return its wall time and CPU time in seconds."""
        cpu_s, wall_s = self._so_far_s()
        pass_s = self.hold_s
        if pass_s is None:
            pass_s = cpu_s / self._cores
            # If the machine is always slower than its cores promise, so is the emulated GPU.
            self.taken_s.append(max(pass_s, wall_s))
        early_s = pass_s - wall_s
        self.late_s += max(0.0, -early_s)
        time.sleep(max(0.0, early_s))
        return time.monotonic() - self._wall_s, cpu_s

    def _so_far_s(self) -> tuple[float, float]:
        """Return CPU time and wall time of the pass, without its interruptions."""
        return time.process_time() - self._cpu_s, time.monotonic() - self._wall_s


class PacedTimers(RunningTimers):
    """Timers of Megatron-Core; the timers of compute throttle their passes.

    Parameters
    ----------
    cores : float
        CPU share of the rank, in cores.
    """

    def __init__(self, cores: float) -> None:
        super().__init__()
        self.paces = {name: Pace(cores) for name in (*PASSES, *CODING)}
        self._paced: dict[str, _PacedTimer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """Return the timer of a name."""
        timer = super().__call__(name, log_level)
        if name not in self.paces:
            return timer
        return self._paced.setdefault(name, _PacedTimer(timer, self.paces[name]))


class _PacedTimer(TimerBase):  # type: ignore[misc]
    def __init__(self, timer: Any, pace: Pace) -> None:
        super().__init__(timer.name)
        self._timer, self._pace = timer, pace

    def start(self, barrier: bool = False) -> None:
        self._timer.start(barrier)
        self._pace.begin()

    def stop(self, barrier: bool = False) -> None:
        self._pace.end()
        self._timer.stop(barrier)

    def pause(self) -> None:
        self._pace.pause()
        self._timer.stop()

    def resume(self) -> None:
        self._timer.start()
        self._pace.resume()

    def reset(self) -> None:
        self._timer.reset()

    def elapsed(self, reset: bool = True, barrier: bool = False) -> float:
        seconds: float = self._timer.elapsed(reset, barrier)
        return seconds


def pause(timer: Any) -> None:
    """Stop a pass's timer until `resume`; the pass is not over."""
    timer.pause() if isinstance(timer, _PacedTimer) else timer.stop()


def resume(timer: Any) -> None:
    """Resume a pass's timer."""
    timer.resume() if isinstance(timer, _PacedTimer) else timer.start()


def lacked_so_far_s(timers: Timers) -> float:
    """Return the time by which other processes have delayed this rank's passes; 0 on a GPU.

    Nothing is throttled between passes. There ranks wait for cores that are busy with their own
    traffic.
    """
    if not isinstance(timers, PacedTimers):
        return 0.0
    return sum(pace.late_s for pace in timers.paces.values())


def pass_times_s(timers: PacedTimers) -> list[float]:
    """Return the median time of each of `PASSES` since the last call; NaN without a pass."""
    found = []
    for pace in (timers.paces[name] for name in PASSES):
        found.append(float(np.median(pace.taken_s)) if pace.taken_s else math.nan)
        pace.taken_s.clear()
    return found


def slowed(needed_s: FloatArray, asked_s: Sequence[Sequence[float]]) -> tuple[FloatArray, float]:
    """Return the times that passes are throttled to, and by which factor they exceed `asked_s`.

    Parameters
    ----------
    needed_s : array of (stage, pass)
        Time that each of `PASSES` needs on a rank of each pipeline stage.
    asked_s : sequence of (stage, pass)
        Requested times of the first passes; the others take what they need. Empty: all do.

    Returns
    -------
    times, factor
        Times (stage, pass). The factor is the smallest that leaves each pass the time it needs, and
        at least 1, because links were checked at the rates for `asked_s`: they may be slower, but
        not faster.
    """
    if not asked_s:
        return needed_s, 1.0
    asked = np.array(asked_s)
    asked_passes = slice(asked.shape[1])
    factor = max(1.0, float((needed_s[:, asked_passes] / asked).max()))
    times = needed_s.copy()
    times[:, asked_passes] = factor * asked
    return times, factor


def hold_passes(timers: PacedTimers, times_s: Sequence[float]) -> None:
    """Throttle each of `PASSES` on this rank to a fixed time from now on."""
    for name, time_s in zip(PASSES, times_s, strict=True):
        timers.paces[name].hold_s = time_s
