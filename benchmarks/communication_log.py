"""What the log of communication costs: iterations with and without it, and its own time in them.

Two ranks train GPT-2-Medium's testbed model, split over both (tensor parallelism: the most calls),
over the loopback, as emulated GPUs with the share that eight have of two cores. Blocks of
iterations with and without the log alternate in one run. Prints the ratio of the medians with its
95 % interval (budget: 1.01). The log's own time is told too: each call is timed in front of the log
and behind it, where caches are as cold as computing leaves them; of the difference, that of calls
that nobody logs is taken off, which is the clocks'.

    python benchmarks/communication_log.py
"""

import gc
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from small_run import small_run

_RANKS = 2
_CORES = 0.2
_WARMUP, _BLOCKS, _BLOCK = 10, 60, 5
_BUDGET = 1.01
_RESAMPLES = 1000


@contextmanager
def _timed(spent_s: list[float]) -> Iterator[None]:
    """Note what each call of a process group's methods and each waiting for one takes from here."""
    import torch.distributed as dist

    from repro.observe.communication_log import _METHODS

    def timed(own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began_s = time.perf_counter()
            result = own(*arguments, **options)
            spent_s.append(time.perf_counter() - began_s)
            return result

        return call

    doors = [(dist.ProcessGroup, name) for name in _METHODS] + [(dist.Work, "wait")]
    with ExitStack() as stack:
        for where, name in doors:
            stack.enter_context(mock.patch.object(where, name, timed(getattr(where, name))))
        yield


def _rank(rank: int, port: int, scratch: Path, answer: Connection) -> None:
    import torch
    import torch.distributed as dist

    from repro.observe.communication_log import logging
    from repro.train import run as training
    from repro.train.megatron.groups import join_groups, leave_groups
    from repro.train.pacing import PacedTimers, hold_passes, pass_times_s

    torch.set_num_threads(1)
    gc.freeze()
    iterations = _WARMUP + _BLOCKS * _BLOCK
    run = replace(small_run(iterations), tensor_parallel=_RANKS, log_communication=True)
    # Seconds of each iteration, by whether it was logged, and those between the clocks in it.
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    calls = 0
    with training.device_scope():
        join_groups(rank, _RANKS, "127.0.0.1", port, tensor_parallel=_RANKS)
        state = training.set_up(run, scratch, _CORES)
        assert state.log is not None and isinstance(state.timers, PacedTimers)
        for _ in range(_WARMUP):
            training.iterate(state, [next(state.training)])
        hold_passes(state.timers, pass_times_s(state.timers))
        for block in range(_BLOCKS):
            logged = bool(block % 2)
            behind_s: list[float] = []
            before_s: list[float] = []
            with (
                _timed(behind_s),
                logging(state.log) if logged else nullcontext(),
                _timed(before_s),
            ):
                for _ in range(_BLOCK):
                    batches = [next(state.training)]
                    dist.barrier()
                    for done in (behind_s, before_s):
                        done.clear()
                    state.log.take(0)
                    began_s = time.monotonic()
                    training.iterate(state, batches)
                    iteration_s = time.monotonic() - began_s
                    found[logged].append((iteration_s, sum(before_s) - sum(behind_s)))
                    calls = max(calls, len(state.log.take(0)))
        leave_groups()
    answer.send((found, calls))


def _interval(bare: np.ndarray, logged: np.ndarray) -> tuple[float, float, float]:
    """Ratio of the medians, and its bootstrap interval."""
    draw = np.random.default_rng(1).integers
    medians = [
        np.median(times[draw(len(times), size=(_RESAMPLES, len(times)))], axis=1)
        for times in (logged, bare)
    ]
    low, high = np.quantile(medians[0] / medians[1], [0.025, 0.975])
    return float(np.median(logged) / np.median(bare)), float(low), float(high)


def main() -> None:
    """Start the ranks, and print what their log costs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        pipes, processes = [], []
        for rank in range(_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(rank, port, Path(scratch), theirs))
            process.start()
            pipes.append(ours)
            processes.append(process)
        found, calls = pipes[0].recv()
        for process in processes:
            process.join()
    (bare_s, clocks_s), (logged_s, both_s) = (np.array(found[kind]).T for kind in (False, True))
    ratio, low, high = _interval(bare_s, logged_s)
    print(f"{calls} calls in an iteration of {1e3 * np.median(bare_s):.1f} ms")
    print(f"logged over bare: {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    if high - low > _BUDGET - 1:
        print(f"this machine does not resolve {_BUDGET - 1:.0%}")
    own_s = np.quantile(both_s, [0.05, 0.5, 0.95]) - np.median(clocks_s)
    low, middle, high = own_s / np.median(bare_s)
    print(f"the log itself: {middle:.2%} of an iteration ({low:.2%} to {high:.2%} in nine of ten)")
    print(f"{1e6 * own_s[1] / calls:.0f} us a call")


if __name__ == "__main__":
    main()
