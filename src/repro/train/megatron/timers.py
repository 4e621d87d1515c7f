"""Timers of Megatron-Core that list the running ones, on a clock that does not jump."""

import time
from types import SimpleNamespace
from typing import Any

from megatron.core import timers
from megatron.core.timers import Timer, Timers

# Megatron-Core reads the wall clock, which may be set during a measurement.
timers.time = SimpleNamespace(time=time.monotonic)


class RunningTimers(Timers):  # type: ignore[misc]
    """Timers of all levels: each start and stop synchronises the device.

    `running` are the names of the running timers, in the order in which they were started.
    """

    def __init__(self) -> None:
        super().__init__(log_level=2, log_option="minmax")
        self.running: dict[str, None] = {}

    def __call__(self, name: str, log_level: int | None = None) -> Any:
        """Return the timer of a name."""
        if name not in self._timers:
            super().__call__(name, log_level)
            self._timers[name] = _RunningTimer(name, self.running)
        return super().__call__(name, log_level)


class _RunningTimer(Timer):  # type: ignore[misc]
    def __init__(self, name: str, running: dict[str, None]) -> None:
        super().__init__(name)
        self._running = running

    def start(self, barrier: bool = False) -> None:
        super().start(barrier)
        self._running[self.name] = None

    def stop(self, barrier: bool = False) -> None:
        super().stop(barrier)
        del self._running[self.name]

    def reset(self) -> None:
        super().reset()
        self._running.pop(self.name, None)
