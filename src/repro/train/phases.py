"""Where an iteration's time goes: Megatron-Core's timers, read after every iteration."""

from megatron.core.timers import Timers

from repro.train.records import PHASES

# The timer behind each phase. Megatron-Core's schedule starts and stops the first two, given the
# `Timers` in its configuration; the training loop the others.
TIMERS = {
    "forward compute": "forward-compute",
    "backward compute": "backward-compute",
    "straggler wait": "straggler-wait",
    "gradient sync": "gradient-sync",
    "optimizer": "optimizer",
}


def create_timers() -> Timers:
    """Timers that record all levels: each start and stop synchronises the device."""
    timers = Timers(log_level=2, log_option="minmax")
    for name in ("straggler-wait", "gradient-sync", "optimizer"):
        timers(name, log_level=0)
    return timers


def read_phases(timers: Timers, iteration_time_s: float) -> dict[str, float]:
    """Seconds of each phase of the iteration just finished; resets the timers."""
    times = {phase: timers(name).elapsed(reset=True) for phase, name in TIMERS.items()}
    times["other"] = iteration_time_s - sum(times.values())
    return {phase: times[phase] for phase in PHASES}
