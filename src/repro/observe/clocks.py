"""Measurement of the offset between each rank's monotonic clock and rank 0's.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989). A peer
reads its clock during a round trip. The midpoint of the trip is therefore wrong by at most half of
it, even if the two directions take unequal times. The shortest of many round trips is used.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.observe.clock_offsets import ClockOffset

# Enough that one round trip is not delayed by other processes; takes some milliseconds per peer.
ROUNDS = 50


def measure_offset(
    rounds: int = ROUNDS, clock: Callable[[], float] = time.monotonic
) -> ClockOffset:
    """Measure the offset of this rank's clock from rank 0's, now.

    All ranks of the default group must call this. Rank 0 measures one peer after another, so that
    round trips do not delay each other. With NCCL, messages are on the current GPU and host times
    include the launch and the synchronization, which increases the uncertainty.

    Parameters
    ----------
    rounds
        Round trips with each rank, at least one.
    clock
        Clock to measure, in seconds.
    """
    # NCCL creates a group's communicator at the first call of all its ranks.
    dist.barrier()
    if dist.get_rank() != 0:
        return _answer_rank0(rounds, clock)
    for peer in range(1, dist.get_world_size()):
        _measure_peer(peer, rounds, clock)
    return ClockOffset(clock(), 0.0, 0.0)


def _measure_peer(peer: int, rounds: int, clock: Callable[[], float]) -> None:
    """Measure a peer's offset by its shortest round trip, and send the offset to the peer."""
    message, stamps, result = _zeros(1), _zeros(rounds), _zeros(3)
    begins, ends = np.empty(rounds), np.empty(rounds)
    for number in range(rounds):
        begins[number] = clock()
        _exchange(dist.isend, message, peer)
        _receive(message, peer)
        ends[number] = clock()
    _receive(stamps, peer)
    at, half = stamps.cpu().numpy(), (ends - begins) / 2
    best = int(half.argmin())
    offset = at[best] - (begins[best] + ends[best]) / 2
    result.copy_(torch.tensor([at[best], offset, half[best]], dtype=torch.float64))
    _exchange(dist.isend, result, peer)


def _answer_rank0(rounds: int, clock: Callable[[], float]) -> ClockOffset:
    message, stamps, result = _zeros(1), _zeros(rounds), _zeros(3)
    # Sent after the last round trip: copying a time to a GPU would prolong each of them.
    at = torch.empty(rounds, dtype=torch.float64)
    for number in range(rounds):
        _receive(message, 0)
        at[number] = clock()
        _exchange(dist.isend, message, 0)
    stamps.copy_(at)
    _exchange(dist.isend, stamps, 0)
    _receive(result, 0)
    return ClockOffset(*result.tolist())


def _zeros(count: int) -> torch.Tensor:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return torch.zeros(count, dtype=torch.float64, device=device)


def _exchange(operation: Callable[..., Any], message: torch.Tensor, peer: int) -> None:
    """Send or receive as a batch, which uses the group's communicator, not one for each pair."""
    for request in dist.batch_isend_irecv([dist.P2POp(operation, message, peer)]):
        request.wait()


def _receive(message: torch.Tensor, peer: int) -> None:
    _exchange(dist.irecv, message, peer)
    if message.is_cuda:
        # NCCL has only enqueued the receive; the clock must be read after its completion.
        torch.cuda.current_stream().synchronize()
