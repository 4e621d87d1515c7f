"""Messages between pipeline stages, from what their two ends noted on one clock.

A rank that receives waits until its peer sends, and one that sends until its peer receives: gloo
and NCCL both move nothing before. Only with both ends known is a timer's time told apart into
messages under way and waiting for the peer.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from repro.catalog.phases import P2P_TIMERS
from repro.errors import ReproError

Direction = Literal["forward", "backward"]
# Iteration, direction, sender, receiver: messages with all four in common are told apart by order.
_Way = tuple[int, Direction, int, int]


@dataclass(frozen=True)
class MessageEnd:
    """One end of a message between two stages: what its sender or its receiver saw of it.

    Attributes
    ----------
    iteration
        Recorded iteration, from 0.
    timer
        The Megatron-Core timer of the call it belongs to, one of `P2P_TIMERS`.
    call
        Number of that call in this rank's iteration, from 0.
    direction
        Forward for activations, backward for their gradients.
    peer
        Global rank at the other end.
    size_bytes
        Size of the tensor.
    sends
        Whether this rank is the sender.
    posted_s, completed_s
        When the request was posted and when it was complete, on the monotonic clock.
    """

    iteration: int
    timer: str
    call: int
    direction: Direction
    peer: int
    size_bytes: int
    sends: bool
    posted_s: float
    completed_s: float


@dataclass(frozen=True)
class Message:
    """A message between two ranks, under way from `start_s` to `end_s` on the ranks' clock.

    It starts when both ends have posted their request, and ends when it is received.
    """

    iteration: int
    direction: Direction
    sender: int
    receiver: int
    size_bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Call:
    """A point-to-point call of a rank: from its first request to the last one's completion.

    `number` counts the calls of an iteration, and `timer` is one of `P2P_TIMERS`.
    """

    iteration: int
    rank: int
    number: int
    timer: str
    start_s: float
    end_s: float


def pair_messages(ends_by_rank: Sequence[Sequence[MessageEnd]]) -> tuple[Message, ...]:
    """Match what was sent with what was received.

    The k-th send from a to b in an iteration and direction is the k-th receive at b from a.

    Parameters
    ----------
    ends_by_rank
        The message ends of each global rank, in the order in which its calls were made.

    Returns
    -------
    tuple of Message
        By iteration, direction, sender and receiver, then in order.

    Raises
    ------
    ReproError
        A message lacks an end, or its ends disagree about its size.
    """
    return tuple(message for message, _, _ in _pairs(ends_by_rank))


def calls_of(ends_by_rank: Sequence[Sequence[MessageEnd]]) -> tuple[Call, ...]:
    """The calls that all ranks made, rank by rank in the order in which they were made."""
    made: dict[tuple[int, int, int], list[MessageEnd]] = defaultdict(list)
    for rank, ends in enumerate(ends_by_rank):
        for end in ends:
            made[end.iteration, rank, end.call].append(end)
    return tuple(
        Call(
            *call,
            ends[0].timer,
            min(end.posted_s for end in ends),
            max(end.completed_s for end in ends),
        )
        for call, ends in made.items()
    )


def wire_time_s(
    ends_by_rank: Sequence[Sequence[MessageEnd]], iterations: int
) -> NDArray[np.float64]:
    """How long messages were under way within the calls that a rank's timers hold.

    The rest of a timer's time is waiting for the peer. Of each call, the union of its messages'
    time counts, as far as it lies between the call's first request and the last one's completion.

    Parameters
    ----------
    ends_by_rank
        The message ends of each global rank, in the order in which its calls were made.
    iterations
        Recorded iterations.

    Returns
    -------
    ndarray
        Seconds (iteration, rank, timer), timers as in `P2P_TIMERS`.

    Raises
    ------
    ReproError
        A message lacks an end, or its ends disagree about its size.
    """
    under_way: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for message, sent, received in _pairs(ends_by_rank):
        for rank, end in ((message.sender, sent), (message.receiver, received)):
            under_way[end.iteration, rank, end.call].append((message.start_s, message.end_s))
    found = np.zeros((iterations, len(ends_by_rank), len(P2P_TIMERS)))
    for call in calls_of(ends_by_rank):
        intervals = under_way[call.iteration, call.rank, call.number]
        found[call.iteration, call.rank, P2P_TIMERS.index(call.timer)] += _union_s(
            intervals, call.start_s, call.end_s
        )
    return found


def _pairs(
    ends_by_rank: Sequence[Sequence[MessageEnd]],
) -> Iterator[tuple[Message, MessageEnd, MessageEnd]]:
    """Each message with its sender's and its receiver's end."""
    sent: dict[_Way, list[MessageEnd]] = defaultdict(list)
    received: dict[_Way, list[MessageEnd]] = defaultdict(list)
    for rank, ends in enumerate(ends_by_rank):
        for end in ends:
            if end.sends:
                sent[end.iteration, end.direction, rank, end.peer].append(end)
            else:
                received[end.iteration, end.direction, end.peer, rank].append(end)
    for way in sorted(sent.keys() | received.keys()):
        sends, receives = sent[way], received[way]
        iteration, direction, sender, receiver = way
        name = f"iteration {iteration}, {direction}, rank {sender} to rank {receiver}"
        if len(sends) != len(receives):
            raise ReproError(
                f"{name}: {len(sends)} messages were sent and {len(receives)} received; the logs "
                f"of all ranks of a run belong together, whole"
            )
        for send, receive in zip(sends, receives, strict=True):
            if send.size_bytes != receive.size_bytes:
                raise ReproError(
                    f"{name}: {send.size_bytes} bytes were sent and {receive.size_bytes} received"
                )
            start_s = max(send.posted_s, receive.posted_s)
            yield Message(*way, send.size_bytes, start_s, receive.completed_s), send, receive


def _union_s(intervals: list[tuple[float, float]], begin: float, over: float) -> float:
    """Length of the union of intervals, within `begin` and `over`."""
    total, covered = 0.0, begin
    for start, end in sorted(intervals):
        low, high = max(start, covered), min(end, over)
        if high > low:
            total += high - low
            covered = high
    return total
