"""Let an emulated GPU compute at a constant speed, in passes of any length.

An emulated GPU has a share of a core. What it computes in a pass takes it the CPU time that it
needs, at whatever moment the machine gives it; the pass is then held back until that CPU time would
be over at the share's pace. So a pass takes as long on one rank as on many, as long as the ranks'
shares leave some of the machine free.

The CPU time of the same pass varies by a tenth, with the machine's caches and clocks. A GPU's does
not: once a run is warm, every pass of a kind takes what it took then. If that is longer than one
rank takes with the whole model, time itself is slower on these ranks, and so are their links.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from megatron.core.timers import TimerBase, Timers

from repro.observe.nic import FloatArray
from repro.train.megatron.timers import RunningTimers

# What a GPU computes.
PASSES = ("forward-compute", "backward-compute", "optimizer")
# And of messages, in parts of every size: none is like the one before.
CODING = ("encode", "decode")


class Pace:
    """Holds passes back until their CPU time is over at the pace of `cores` cores.

    `taken_s` are the times that passes took. With `hold_s` every pass takes that long instead, and
    none is noted; `late_s` is how much later passes were over, all together.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        # The clocks when the pass began, later by what it has been interrupted since.
        self._wall_s = self._cpu_s = self.late_s = 0.0
        self._paused_s = (0.0, 0.0)
        self.taken_s: list[float] = []
        self.hold_s: float | None = None

    def begin(self) -> None:
        """A pass begins."""
        self._wall_s, self._cpu_s = time.monotonic(), time.process_time()

    def pause(self) -> None:
        """A part of the pass has been computed, and what is next is none of it: wait, as behind a
        whole pass, but not beyond what that is to take."""
        cpu_s, wall_s = self._so_far_s()
        part_s = cpu_s / self._cores
        if self.hold_s is not None:
            part_s = min(part_s, self.hold_s)
        time.sleep(max(0.0, part_s - wall_s))
        self._paused_s = self._so_far_s()

    def resume(self) -> None:
        """The pass goes on."""
        now_s = self._so_far_s()
        self._cpu_s += now_s[0] - self._paused_s[0]
        self._wall_s += now_s[1] - self._paused_s[1]

    def end(self) -> tuple[float, float]:
        """A pass has been computed: wait, and return the seconds it took and its CPU time."""
        cpu_s, wall_s = self._so_far_s()
        pass_s = self.hold_s
        if pass_s is None:
            pass_s = cpu_s / self._cores
            # A machine that is always slower than its cores promise makes the GPU as slow.
            self.taken_s.append(max(pass_s, wall_s))
        early_s = pass_s - wall_s
        self.late_s += max(0.0, -early_s)
        time.sleep(max(0.0, early_s))
        return time.monotonic() - self._wall_s, cpu_s

    def _so_far_s(self) -> tuple[float, float]:
        """CPU time and time of the pass, without what interrupted it."""
        return time.process_time() - self._cpu_s, time.monotonic() - self._wall_s


class PacedTimers(RunningTimers):
    """Megatron-Core's timers, of which those of computing wait until the pace's time is over.

    Parameters
    ----------
    cores : float
        The rank's share, in cores.
    """

    def __init__(self, cores: float) -> None:
        super().__init__()
        self.paces = {name: Pace(cores) for name in (*PASSES, *CODING)}
        self._paced: dict[str, _PacedTimer] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """The timer of a name."""
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
    """Let a pass's timer go on."""
    timer.resume() if isinstance(timer, _PacedTimer) else timer.start()


def lacked_so_far_s(timers: Timers) -> float:
    """By how much passes were late, because the machine was kept from this rank; 0 on a GPU.

    Between passes nothing is paced: there ranks wait for cores that they themselves keep busy with
    their traffic.
    """
    if not isinstance(timers, PacedTimers):
        return 0.0
    return sum(pace.late_s for pace in timers.paces.values())


def pass_times_s(timers: PacedTimers) -> list[float]:
    """The median pass of each of `PASSES` since the last call; NaN without any."""
    found = []
    for pace in (timers.paces[name] for name in PASSES):
        found.append(float(np.median(pace.taken_s)) if pace.taken_s else math.nan)
        pace.taken_s.clear()
    return found


def slower_than_alone(found_s: FloatArray, alone_s: Sequence[float], step_split: bool) -> float:
    """How many times longer passes are than on one rank that has the whole model.

    Parameters
    ----------
    found_s : array of (stage, pass)
        What each of `PASSES` takes a rank of each pipeline stage.
    alone_s : sequence of (pass,)
        What they take one rank alone; empty: not known, and the answer is 1.
    step_split : bool
        Whether ranks divide the optimizer's step, which says nothing then.
    """
    compared = slice(-1 if step_split else None)
    alone = sum(alone_s[compared])
    return float(found_s[:, compared].sum() / alone) if alone else 1.0


def hold_passes(timers: PacedTimers, times_s: Sequence[float]) -> None:
    """From now on let each of `PASSES` take that long, on this rank."""
    for name, time_s in zip(PASSES, times_s, strict=True):
        timers.paces[name].hold_s = time_s
