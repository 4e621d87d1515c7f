"""Exact timeline of Megatron's 1F1B schedule: waiting and messages of each pipeline stage.

Calls block (Megatron-Core's `p2p_communication`): a message starts when both ends have posted it,
and both ends go on when it has arrived. The two messages of a combined call and of its counterpart
travel at the same time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from repro.catalog.phases import P2P_TIMERS
from repro.predict.workload import Array

# Calls of a stage to the next one, and the next one's calls to it.
_COUNTERPARTS = {
    "forward-send": "forward-recv",
    "backward-recv": "backward-send",
    "forward-send-backward-recv": "backward-send-forward-recv",
}
_FORWARD, _BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Timeline:
    """One iteration of a pipeline, in seconds from its start.

    Attributes
    ----------
    timer_s
        Time of each stage in each of `P2P_TIMERS` (stage, timer, ...).
    wire_s
        The part of `timer_s` in which a message of the call travels; the rest is waiting for the
        other end.
    end_s
        End of each stage's last call (stage, ...).
    """

    timer_s: Array
    wire_s: Array
    end_s: Array


def run_1f1b(
    forward_s: Array,
    backward_s: Array,
    forward_message_s: Array,
    backward_message_s: Array,
    micro_batches: int,
) -> Timeline:
    """Run Megatron's schedule without interleaving; trailing axes broadcast against each other.

    Parameters
    ----------
    forward_s, backward_s
        Seconds of one micro batch on each stage (stage, ...).
    forward_message_s, backward_message_s
        Seconds of a message over each boundary between two stages (stage - 1, ...).
    micro_batches
        Micro batches of one iteration; 1 or more.
    """
    stages = len(forward_s)
    passes = {_FORWARD: forward_s, _BACKWARD: backward_s}
    messages = {
        "forward-send": forward_message_s,
        "backward-recv": backward_message_s,
        "forward-send-backward-recv": np.maximum(forward_message_s, backward_message_s),
    }
    shape = np.broadcast_shapes(
        *(values.shape[1:] for values in (*passes.values(), *messages.values()))
    )
    clock = [np.zeros(shape) for _ in range(stages)]
    waited = np.zeros((stages, len(P2P_TIMERS), *shape))
    on_the_wire = np.zeros((stages, len(P2P_TIMERS), *shape))
    programs = [_program(stage, stages, micro_batches) for stage in range(stages)]

    def next_call(stage: int) -> str | None:
        """Compute up to the next call and return its name; None at the end."""
        for step in programs[stage]:
            if step not in passes:
                return step
            clock[stage] = clock[stage] + passes[step][stage]
        return None

    posted = [next_call(stage) for stage in range(stages)]
    # Boundaries whose ends may have posted calls to each other since they were looked at.
    boundaries = list(range(stages - 1))
    while boundaries:
        boundary = boundaries.pop()
        call, counterpart = posted[boundary], posted[boundary + 1]
        if call not in _COUNTERPARTS or _COUNTERPARTS[call] != counterpart:
            continue
        start = np.maximum(clock[boundary], clock[boundary + 1])
        message = messages[call][boundary]
        for stage, name in ((boundary, call), (boundary + 1, _COUNTERPARTS[call])):
            timer = P2P_TIMERS.index(name)
            waited[stage, timer] += start - clock[stage]
            on_the_wire[stage, timer] += message
            clock[stage] = start + message
            posted[stage] = next_call(stage)
        boundaries += range(max(boundary - 1, 0), min(boundary + 2, stages - 1))
    assert not any(posted), "every call has a counterpart"
    return Timeline(waited + on_the_wire, on_the_wire, np.array(clock))


def _program(stage: int, stages: int, micro_batches: int) -> Iterator[str]:
    """Yield passes and calls of one stage in their order.

    Calls to neighbours that do not exist are left out; Megatron's return at once.
    """
    missing = (
        *(_COUNTERPARTS.values() if stage == 0 else ()),
        *(_COUNTERPARTS if stage == stages - 1 else ()),
    )
    return (step for step in _steps(stage, stages, micro_batches) if step not in missing)


def _steps(stage: int, stages: int, micro_batches: int) -> Iterator[str]:
    """Yield steps of Megatron-Core's `forward_backward_pipelining_without_interleaving`."""
    warm_up = min(stages - stage - 1, micro_batches)
    for _ in range(warm_up):
        yield from ("forward-recv", _FORWARD, "forward-send")
    if warm_up < micro_batches:
        yield "forward-recv"
    for number in range(warm_up, micro_batches):
        yield from (_FORWARD, "forward-send-backward-recv", _BACKWARD)
        last = number == micro_batches - 1
        yield "backward-send" if last else "backward-send-forward-recv"
    for _ in range(warm_up):
        yield from ("backward-recv", _BACKWARD, "backward-send")
