"""What the log of communication costs: iterations with and without it, and cycles of a call.

Two ranks train GPT-2-Medium's testbed model, split over both (tensor parallelism: the most calls),
over the loopback. Blocks of iterations with and without the log alternate in one run. Prints the
ratio of the medians with its 95 % interval (budget: 1.01). A machine whose interval is wider than
the budget cannot tell; then cycles are counted: of a logged call less those of a bare one, in
a group whose backend does nothing, times the calls of an iteration, over the iteration's.

    python benchmarks/communication_log.py
"""

import gc
import multiprocessing
import re
import socket
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from small_run import small_run

_RANKS = 2
_BLOCKS, _BLOCK = 60, 5
_ROUNDS, _CALLS = 20, 200
_BUDGET = 1.01
_RESAMPLES = 1000


def _rank(rank: int, port: int, scratch: Path, answer: Connection) -> None:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from repro.observe.communication import logging
    from repro.train import run as training
    from repro.train.groups import join_groups, leave_groups

    torch.set_num_threads(1)
    gc.freeze()
    run = replace(small_run(_BLOCKS * _BLOCK), tensor_parallel=_RANKS, log_communication=True)
    # Wall-clock and CPU seconds of each iteration, by whether it was logged.
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with training.device_scope():
        join_groups(rank, _RANKS, "127.0.0.1", port, tensor_parallel=_RANKS)
        state = training.set_up(run, scratch)
        assert state.log is not None
        calls = 0
        for block in range(_BLOCKS):
            logged = bool(block % 2)
            with logging(state.log) if logged else nullcontext():
                for _ in range(_BLOCK):
                    data = iter([next(state.training)])
                    dist.barrier()
                    state.log.take(0)
                    wall_s, cpu_s = time.monotonic(), time.process_time()
                    training.iterate(state, data)
                    calls = max(calls, len(state.log.take(0)))
                    ends = time.monotonic() - wall_s, time.process_time() - cpu_s
                    found[logged].append(ends)
        leave_groups()
    # A backend that does nothing: waiting for other ranks is not the log's.
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=_RANKS)
    small = torch.ones(1)
    more_s = []
    for _ in range(_ROUNDS):
        call_s = []
        for logged in (False, True):
            with logging(state.log) if logged else nullcontext():
                cpu_s = time.thread_time()
                for _ in range(_CALLS):
                    dist.all_reduce(small)
                call_s.append((time.thread_time() - cpu_s) / _CALLS)
            state.log.take(0)
        more_s.append(call_s[1] - call_s[0])
    answer.send((found, calls, float(np.median(more_s))))


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
        found, calls, call_cpu_s = pipes[0].recv()
        for process in processes:
            process.join()
    bare, logged = (np.array(found[kind]) for kind in (False, True))
    ratio, low, high = _interval(bare[:, 0], logged[:, 0])
    print(f"{calls} calls in an iteration of {1e3 * np.median(bare[:, 0]):.1f} ms")
    print(f"logged over bare: {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    if high - low > _BUDGET - 1:
        print(f"this machine does not resolve {_BUDGET - 1:.0%}")
    clock = re.search(r"cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text())
    cycles = call_cpu_s * (float(clock[1]) * 1e6 if clock else np.nan)
    share = calls * call_cpu_s / np.median(bare[:, 1])
    print(f"a logged call takes {cycles:.0f} cycles more: {share:.2%} of an iteration's")


if __name__ == "__main__":
    main()
