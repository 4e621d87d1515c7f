"""Messages between pipeline stages, matched from the records of sender and receiver on one clock.

A receiver waits until its peer sends, and a sender until its peer receives: gloo and NCCL transfer
nothing before both. The records of both ends are therefore needed to split a timer's time into
transfer and waiting for the peer.
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
# Iteration, direction, sender, receiver: messages of one channel are matched by their order.
_Channel = tuple[int, Direction, int, int]


@dataclass(frozen=True)
class MessageEnd:
    """One end of a message between two stages, as its sender or receiver recorded it.

    Attributes
    ----------
    iteration
        Recorded iteration, from 0.
    timer
        Megatron-Core timer of the call that the message belongs to, one of `P2P_TIMERS`.
    call
        Number of that call in this rank's iteration, from 0.
    direction
        Forward for activations, backward for their gradients.
    peer
        Global rank at the other end.
    size_bytes
        Size of the tensor, in bytes.
    sends
        Whether this rank is the sender.
    posted_s, completed_s
        Times when the request was posted and completed, in seconds on the monotonic clock.
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
    """A message between two ranks, in transfer from `start_s` to `end_s` on the ranks' clock.

    The transfer starts when both ends have posted their requests, and ends when it is received.
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
    """A point-to-point call of a rank, from its first request to the last completion.

    `number` is its index among the rank's calls in the iteration; `timer` is one of `P2P_TIMERS`.
    """

    iteration: int
    rank: int
    number: int
    timer: str
    start_s: float
    end_s: float


def pair_messages(ends_by_rank: Sequence[Sequence[MessageEnd]]) -> tuple[Message, ...]:
    """Match sends with receives.

    The k-th send from a to b in an iteration and direction is the k-th receive at b from a.

    Parameters
    ----------
    ends_by_rank
        Message ends of each global rank, in the order of its calls.

    Returns
    -------
    tuple of Message
        Sorted by iteration, direction, sender and receiver, then in the order of the calls.

    Raises
    ------
    ReproError
        A message has no other end, or the sizes of its two ends differ.
    """
    return tuple(message for message, _, _ in _pairs(ends_by_rank))


def calls_of(ends_by_rank: Sequence[Sequence[MessageEnd]]) -> tuple[Call, ...]:
    """Return the calls of all ranks, rank by rank, in the order of each rank's calls."""
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
    """Return the transfer time of messages within the calls of each rank's timers.

    The rest of a timer's time is waiting for the peer. A call contributes the union of its
    messages' transfer intervals, clipped to the call's first request and last completion.

    Parameters
    ----------
    ends_by_rank
        Message ends of each global rank, in the order of its calls.
    iterations
        Number of recorded iterations.

    Returns
    -------
    ndarray
        Seconds (iteration, rank, timer), timers as in `P2P_TIMERS`.

    Raises
    ------
    ReproError
        A message has no other end, or the sizes of its two ends differ.
    """
    transfers: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for message, sent, received in _pairs(ends_by_rank):
        for rank, end in ((message.sender, sent), (message.receiver, received)):
            transfers[end.iteration, rank, end.call].append((message.start_s, message.end_s))
    total_s = np.zeros((iterations, len(ends_by_rank), len(P2P_TIMERS)))
    for call in calls_of(ends_by_rank):
        intervals = transfers[call.iteration, call.rank, call.number]
        total_s[call.iteration, call.rank, P2P_TIMERS.index(call.timer)] += _union_s(
            intervals, call.start_s, call.end_s
        )
    return total_s


def _pairs(
    ends_by_rank: Sequence[Sequence[MessageEnd]],
) -> Iterator[tuple[Message, MessageEnd, MessageEnd]]:
    """Yield each message with its sender's and its receiver's end."""
    sent: dict[_Channel, list[MessageEnd]] = defaultdict(list)
    received: dict[_Channel, list[MessageEnd]] = defaultdict(list)
    for rank, ends in enumerate(ends_by_rank):
        for end in ends:
            if end.sends:
                sent[end.iteration, end.direction, rank, end.peer].append(end)
            else:
                received[end.iteration, end.direction, end.peer, rank].append(end)
    for channel in sorted(sent.keys() | received.keys()):
        sends, receives = sent[channel], received[channel]
        iteration, direction, sender, receiver = channel
        name = f"iteration {iteration}, {direction}, rank {sender} to rank {receiver}"
        if len(sends) != len(receives):
            raise ReproError(
                f"{name}: {len(sends)} messages were sent and {len(receives)} received; fix: pass "
                "the complete logs of all ranks of one run"
            )
        for send, receive in zip(sends, receives, strict=True):
            if send.size_bytes != receive.size_bytes:
                raise ReproError(
                    f"{name}: {send.size_bytes} bytes were sent and {receive.size_bytes} "
                    "received; fix: pass the complete logs of all ranks of one run"
                )
            start_s = max(send.posted_s, receive.posted_s)
            yield Message(*channel, send.size_bytes, start_s, receive.completed_s), send, receive


def _union_s(intervals: list[tuple[float, float]], first: float, last: float) -> float:
    """Return the length of the union of intervals, clipped to `first` and `last`."""
    total, covered = 0.0, first
    for start, end in sorted(intervals):
        low, high = max(start, covered), min(end, last)
        if high > low:
            total += high - low
            covered = high
    return total
