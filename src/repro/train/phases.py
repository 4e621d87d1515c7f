"""Phases of an iteration, from Megatron-Core's timers after every iteration."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads

from repro.catalog.phases import MESSAGE_PHASES, P2P_TIMERS, PHASES
from repro.train.megatron.exchange import all_to_all_timer
from repro.train.megatron.timers import RunningTimers
from repro.train.pacing import CODING, PASSES, PacedTimers, pause, resume

# The schedule of Megatron-Core starts and stops the timers of compute and of messages (`Timers` in
# its configuration). Its gradient sync does so for the data-parallel part, and the training loop
# for the others.
_COMPUTE = {"forward compute": "forward-compute", "backward compute": "backward-compute"}
_LOOP = {
    "straggler wait": "straggler-wait",
    "optimizer": "optimizer",
    "forward all-to-all": all_to_all_timer("forward"),
    "backward all-to-all": all_to_all_timer("backward"),
    "tensor all-reduce": "tensor-all-reduce",
    **{name: name for name in CODING},
}
_GRADIENT_SYNC = "gradient-sync"
_ALL_GATHER = "parameter-all-gather"
_DATA_PARALLEL = "all-grads-sync"
# Phase of each timer, those of the interleaved schedule included.
_PHASES_OF = {
    **{name: phase for phase, name in (_COMPUTE | _LOOP).items()},
    **{name: phase for phase, names in MESSAGE_PHASES.items() for name in names},
    _ALL_GATHER: "parameter all-gather",
    "forward-send-forward-recv": "forward receive",
    "backward-send-backward-recv": "backward receive",
    "forward-backward-send-forward-backward-recv": "forward receive",
}
_ALL = (
    *_COMPUTE.values(),
    *P2P_TIMERS,
    *_LOOP.values(),
    _GRADIENT_SYNC,
    _ALL_GATHER,
    _DATA_PARALLEL,
)


def create_timers(cores: float | None = None) -> RunningTimers:
    """Create the timers of an iteration; a CPU share of `cores` throttles the passes."""
    timers = RunningTimers() if cores is None else PacedTimers(cores)
    for name in (*_LOOP.values(), _GRADIENT_SYNC, _ALL_GATHER):
        timers(name, log_level=0)
    timers(_DATA_PARALLEL, log_level=1)
    return timers


def running_phase(timers: RunningTimers, pipeline: bool = False) -> str:
    """Return the phase of the innermost running timer, as `read_phases` divides the iteration."""
    running = timers.running
    if _GRADIENT_SYNC in running:
        return "gradient sync" if _DATA_PARALLEL in running or not pipeline else "embedding sync"
    for name in reversed(running):
        if name in _PHASES_OF:
            return _PHASES_OF[name]
    return "other"


def reset_timers(timers: RunningTimers) -> None:
    """Reset all timers."""
    for name in _ALL:
        timers(name).reset()


def read_phases(
    timers: RunningTimers, iteration_time_s: float, pipeline: bool = False
) -> tuple[dict[str, float], dict[str, float]]:
    """Read the seconds of each phase and message timer of the last iteration, and reset timers.

    Without a pipeline there is nothing to sync but gradients, and all time between the two barriers
    is the gradient sync. In a pipeline the gradient sync is Megatron-Core's data-parallel part, and
    the rest up to the second barrier is the embedding sync.
    """
    times = {name: timers(name).elapsed(reset=True) for name in _ALL}
    sync = times[_DATA_PARALLEL] if pipeline else times[_GRADIENT_SYNC]
    phases = {phase: times[name] for phase, name in (_COMPUTE | _LOOP).items()}
    phases |= {phase: sum(times[name] for name in names) for phase, names in MESSAGE_PHASES.items()}
    phases |= {"gradient sync": sync, "embedding sync": times[_GRADIENT_SYNC] - sync}
    phases["parameter all-gather"] = times[_ALL_GATHER]
    phases["other"] = iteration_time_s - sum(phases.values())
    return {phase: phases[phase] for phase in PHASES}, {name: times[name] for name in P2P_TIMERS}


@contextmanager
def _between_barriers(
    timers: RunningTimers, name: str, group: dist.ProcessGroup | None = None
) -> Iterator[None]:
    """Time the scope between two barriers of a group, and the wait for the first one.

    Early ranks wait at the first barrier, so the time is that of the wire. With the second barrier
    it is the collective's time, up to when the last rank has its data. A ring's ranks finish one
    after another.
    """
    timers("straggler-wait").start()
    dist.barrier(group)
    timers("straggler-wait").stop()
    timers(name).start()
    yield
    dist.barrier(group)
    timers(name).stop()


def timed_gradient_sync(
    timers: RunningTimers, sync: Callable[..., None] = finalize_model_grads
) -> Callable[..., None]:
    """Return a gradient sync, by default Megatron-Core's, between barriers with its own timer."""

    def synchronise(model: Any, num_tokens: Any = None, **groups: Any) -> None:
        with _between_barriers(timers, _GRADIENT_SYNC):
            sync(model, num_tokens, **groups)

    return synchronise


def time_parameter_all_gather(model: Any, timers: RunningTimers) -> None:
    """Time Megatron-Core's parameter all-gather between two barriers, like the gradient sync.

    It is part of the optimizer's step, but not of its timer.
    """
    # Before release 0.18 the optimizer calls it through the model, since then through the buckets.
    # A pipeline's stages have different numbers of buckets; replicas of a stage have the same.
    for bucket in model.bucket_groups:
        bucket.start_param_sync = partial(_timed_all_gather, bucket.start_param_sync, timers)


def _timed_all_gather(
    gather: Callable[..., None], timers: RunningTimers, *arguments: Any, **options: Any
) -> None:
    # The step continues after the all-gather.
    pause(timers("optimizer"))
    with _between_barriers(timers, _ALL_GATHER, parallel_state.get_data_parallel_group()):
        gather(*arguments, **options)
    resume(timers("optimizer"))


@contextmanager
def _out_of_pass(timers: RunningTimers, name: str) -> Iterator[None]:
    """Time a collective in the middle of a pass separately, with the wait for slower ranks.

    If its timer runs already, the collective is in no pass.
    """
    if name in timers.running:
        yield
        return
    within = [one for one in PASSES if one in timers.running]
    for one in within:
        pause(timers(one))
    timers(name).start()
    yield
    timers(name).stop()
    for one in within:
        resume(timers(one))


def gathering_parameters(timers: RunningTimers) -> AbstractContextManager[None]:
    """Count the scope as parameter all-gather instead of the pass that contains it."""
    return _out_of_pass(timers, _ALL_GATHER)


def syncing_gradients(timers: RunningTimers) -> AbstractContextManager[None]:
    """Count the scope as gradient sync instead of the pass that contains it."""
    return _out_of_pass(timers, _GRADIENT_SYNC)


def tensor_all_reduce(timers: RunningTimers) -> AbstractContextManager[None]:
    """Count the scope as tensor-parallel all-reduce instead of the pass that contains it."""
    return _out_of_pass(timers, _LOOP["tensor all-reduce"])


@contextmanager
def _out_of_everything(timers: RunningTimers, name: str) -> Iterator[None]:
    """Time compute that interrupts passes, collectives and messages."""
    running = list(timers.running)
    for one in running:
        pause(timers(one))
    timers(name).start()
    yield
    timers(name).stop()
    for one in running:
        resume(timers(one))


def encoding(timers: RunningTimers) -> AbstractContextManager[None]:
    """Count the scope as encoding of a message, and interrupt all other timers."""
    return _out_of_everything(timers, "encode")


def decoding(timers: RunningTimers) -> AbstractContextManager[None]:
    """Count the scope as decoding of a message, and interrupt all other timers."""
    return _out_of_everything(timers, "decode")
