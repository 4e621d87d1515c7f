"""Monotonic clocks of ranks on different machines, on one axis: rank 0's.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3 (1989): a peer's
stamp lies between the two of the round trip that fetched it, so the middle of these is wrong by
half of the round trip at most, however unequal its two ways; the shortest of many rounds is kept.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.observe.clock_offsets import ClockOffset

# Enough for one that no other work on either machine prolonged; some milliseconds for each peer.
ROUNDS = 50


def measure_offset(
    rounds: int = ROUNDS, clock: Callable[[], float] = time.monotonic
) -> ClockOffset:
    """This rank's clock against rank 0's, measured now; all ranks of the default group call it.

    Rank 0 serves the others in turn, so that no two round trips wait for each other; who is not
    its turn waits. With NCCL the messages are on the current GPU, and the host's stamps include
    what it takes to start and to notice them: the uncertainty is larger, not wrong.

    Parameters
    ----------
    rounds
        Round trips with each rank, one at least.
    clock
        The clock to measure, in seconds.
    """
    # With NCCL a group's communicator comes with the first call that all of its ranks make.
    dist.barrier()
    if dist.get_rank() != 0:
        return _answer(rounds, clock)
    for peer in range(1, dist.get_world_size()):
        _ask(peer, rounds, clock)
    return ClockOffset(clock(), 0.0, 0.0)


def _ask(peer: int, rounds: int, clock: Callable[[], float]) -> None:
    """Exchange messages with a rank, and tell it its offset by the shortest of the rounds."""
    message, stamps, result = _numbers(1), _numbers(rounds), _numbers(3)
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


def _answer(rounds: int, clock: Callable[[], float]) -> ClockOffset:
    message, stamps, result = _numbers(1), _numbers(rounds), _numbers(3)
    # Sent after the last round: copying them to a GPU in each would prolong it.
    at = torch.empty(rounds, dtype=torch.float64)
    for number in range(rounds):
        _receive(message, 0)
        at[number] = clock()
        _exchange(dist.isend, message, 0)
    stamps.copy_(at)
    _exchange(dist.isend, stamps, 0)
    _receive(result, 0)
    return ClockOffset(*result.tolist())


def _numbers(count: int) -> torch.Tensor:
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    return torch.zeros(count, dtype=torch.float64, device=device)


def _exchange(operation: Callable[..., Any], message: torch.Tensor, peer: int) -> None:
    """Send or receive through the group's own communicator: alone, each pair would get one."""
    for request in dist.batch_isend_irecv([dist.P2POp(operation, message, peer)]):
        request.wait()


def _receive(message: torch.Tensor, peer: int) -> None:
    _exchange(dist.irecv, message, peer)
    if message.is_cuda:
        # NCCL has only been told to receive; the stamp must come after it did.
        torch.cuda.current_stream().synchronize()
