"""Overhead of the communication log: iterations with and without it, and the log's own time.

Two ranks train GPT-2-Medium's testbed model over the loopback, with tensor parallelism, which makes
the most calls. They are emulated GPUs with the CPU time that each of eight has on two cores. Blocks
of iterations with and without the log alternate in one run. Prints the ratio of the medians with
its 95 % interval (budget: 1.01).

Also prints the log's own time. Each call is timed outside and inside the log's functions, within
training, so that caches are realistic. The difference without the log, which is the cost of
reading the clocks, is subtracted.

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
    """Add to `spent_s` the seconds of each `ProcessGroup` method call and each wait."""
    import torch.distributed as dist

    from repro.observe.communication_log import _METHODS

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            began_s = time.perf_counter()
            result = original(*arguments, **options)
            spent_s.append(time.perf_counter() - began_s)
            return result

        return call

    methods = [(dist.ProcessGroup, name) for name in _METHODS] + [(dist.Work, "wait")]
    with ExitStack() as stack:
        for where, name in methods:
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
    # Seconds of each iteration, and in it those between outer and inner timing, by whether logged.
    times: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
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
            inner_s: list[float] = []
            outer_s: list[float] = []
            with (
                _timed(inner_s),
                logging(state.log) if logged else nullcontext(),
                _timed(outer_s),
            ):
                for _ in range(_BLOCK):
                    batches = [next(state.training)]
                    dist.barrier()
                    for spent_s in (inner_s, outer_s):
                        spent_s.clear()
                    state.log.take(0)
                    began_s = time.monotonic()
                    training.iterate(state, batches)
                    iteration_s = time.monotonic() - began_s
                    times[logged].append((iteration_s, sum(outer_s) - sum(inner_s)))
                    calls = max(calls, len(state.log.take(0)))
        leave_groups()
    answer.send((times, calls))


def _interval(bare: np.ndarray, logged: np.ndarray) -> tuple[float, float, float]:
    """Return the ratio of the medians, and its bootstrap interval."""
    draw = np.random.default_rng(1).integers
    medians = [
        np.median(times[draw(len(times), size=(_RESAMPLES, len(times)))], axis=1)
        for times in (logged, bare)
    ]
    low, high = np.quantile(medians[0] / medians[1], [0.025, 0.975])
    return float(np.median(logged) / np.median(bare)), float(low), float(high)


def main() -> None:
    """Start the ranks, and print the overhead of their log."""
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
        times, calls = pipes[0].recv()
        for process in processes:
            process.join()
    (bare_s, clocks_s), (logged_s, both_s) = (np.array(times[kind]).T for kind in (False, True))
    ratio, low, high = _interval(bare_s, logged_s)
    print(f"{calls} calls per iteration of {1e3 * np.median(bare_s):.1f} ms")
    print(f"logged over bare: {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    if high - low > _BUDGET - 1:
        print(f"this machine is too noisy to measure {_BUDGET - 1:.0%}")
    own_s = np.quantile(both_s, [0.05, 0.5, 0.95]) - np.median(clocks_s)
    low, middle, high = own_s / np.median(bare_s)
    print(
        f"the log itself: {middle:.2%} of an iteration (90 % of iterations: {low:.2%}-{high:.2%})"
    )
    print(f"{1e6 * own_s[1] / calls:.0f} us per call")


if __name__ == "__main__":
    main()
