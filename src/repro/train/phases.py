"""Where an iteration's time goes: Megatron-Core's timers, read after every iteration."""

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

# Megatron-Core's schedule starts and stops the timers of computing and of messages, given the
# `Timers` in its configuration, and its gradient sync that of the data-parallel part; the training
# loop the others.
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
# A timer's phase, those of the interleaved schedule included.
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
    """An iteration's timers; with a share of `cores`, passes take the time that they have at that
    pace."""
    timers = RunningTimers() if cores is None else PacedTimers(cores)
    for name in (*_LOOP.values(), _GRADIENT_SYNC, _ALL_GATHER):
        timers(name, log_level=0)
    timers(_DATA_PARALLEL, log_level=1)
    return timers


def running_phase(timers: RunningTimers, pipeline: bool = False) -> str:
    """The phase whose timer runs now, the innermost, as `read_phases` divides the iteration."""
    running = timers.running
    if _GRADIENT_SYNC in running:
        return "gradient sync" if _DATA_PARALLEL in running or not pipeline else "embedding sync"
    for name in reversed(running):
        if name in _PHASES_OF:
            return _PHASES_OF[name]
    return "other"


def reset_timers(timers: RunningTimers) -> None:
    """Forget what was timed since the last reading."""
    for name in _ALL:
        timers(name).reset()


def read_phases(
    timers: RunningTimers, iteration_time_s: float, pipeline: bool = False
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of each phase and of each message timer of the iteration just finished.

    Without a pipeline there is nothing to sync but gradients, and all between the two barriers is
    the gradient sync. In a pipeline it is Megatron-Core's data-parallel part of it, and the rest up
    to the barrier behind is the embedding sync. Resets the timers.
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
    """Time what is inside between two barriers of a group, and the waiting for the first one.

    The barrier in front makes the time wire time: whoever is early waits there. The one behind
    makes it the collective's time: it is over when the last rank has its data, while a ring's
    ranks finish one after another.
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
    """A gradient sync, Megatron-Core's by default, between two barriers under its own timer."""

    def synchronise(model: Any, num_tokens: Any = None, **groups: Any) -> None:
        with _between_barriers(timers, _GRADIENT_SYNC):
            sync(model, num_tokens, **groups)

    return synchronise


def time_parameter_all_gather(model: Any, timers: RunningTimers) -> None:
    """Have Megatron-Core's parameter all-gather, which is part of the optimizer's step, run between
    two barriers like the gradient sync, and out of the optimizer's timer."""
    # Before release 0.18 the optimizer asks the model for it, since then the model's buckets. A
    # pipeline's stages have different numbers of them; replicas of a stage have the same.
    for bucket in model.bucket_groups:
        bucket.start_param_sync = partial(_timed_all_gather, bucket.start_param_sync, timers)


def _timed_all_gather(
    gather: Callable[..., None], timers: RunningTimers, *arguments: Any, **options: Any
) -> None:
    # The step is not over.
    pause(timers("optimizer"))
    with _between_barriers(timers, _ALL_GATHER, parallel_state.get_data_parallel_group()):
        gather(*arguments, **options)
    resume(timers("optimizer"))


@contextmanager
def _out_of_pass(timers: RunningTimers, name: str) -> Iterator[None]:
    """Time a collective in the middle of a pass as itself: waiting for slower ranks is part of it.
    Where its timer runs already, it is in no pass."""
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
    """What is inside is the parameter all-gather's, out of the pass in which it is."""
    return _out_of_pass(timers, _ALL_GATHER)


def syncing_gradients(timers: RunningTimers) -> AbstractContextManager[None]:
    """What is inside is the gradient sync's, out of the pass in which it is."""
    return _out_of_pass(timers, _GRADIENT_SYNC)


def tensor_all_reduce(timers: RunningTimers) -> AbstractContextManager[None]:
    """What is inside is a tensor-parallel all-reduce, out of the pass in which it is."""
    return _out_of_pass(timers, _LOOP["tensor all-reduce"])


@contextmanager
def _out_of_everything(timers: RunningTimers, name: str) -> Iterator[None]:
    """Time computing that interrupts passes, collectives and messages."""
    running = list(timers.running)
    for one in running:
        pause(timers(one))
    timers(name).start()
    yield
    timers(name).stop()
    for one in running:
        resume(timers(one))


def encoding(timers: RunningTimers) -> AbstractContextManager[None]:
    """What is inside encodes a message, out of whatever it is a part of."""
    return _out_of_everything(timers, "encode")


def decoding(timers: RunningTimers) -> AbstractContextManager[None]:
    """What is inside decodes a message, likewise."""
    return _out_of_everything(timers, "decode")
