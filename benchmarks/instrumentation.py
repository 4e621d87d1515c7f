"""Overhead of timers, barriers and NIC sampling, compared with bare Megatron-Core.

Two ranks, each on one core, train GPT-2-Medium's testbed model on the pipeline's corpus over the
loopback. Links are not shaped, because waiting for them would hide the overhead. With a GPU, one
rank trains the full-size model on it. Blocks of iterations with and without instrumentation
alternate in one run, so that drift of the machine affects both alike. Prints the median of the
ratios of neighbouring blocks (budget: 1.02).

    python benchmarks/instrumentation.py
"""

import gc
import multiprocessing
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import torch
from small_run import full_run, small_run

from repro.observe.nic import SAMPLES_PER_S

_ON_GPU = torch.cuda.is_available()
_RANKS = 1 if _ON_GPU else 2
_BLOCKS = 24 if _ON_GPU else 80
_BLOCK = 5
_BUDGET = 1.02


def _rank(rank: int, port: int, scratch: Path, sampling: Event, answer: Connection) -> None:
    from megatron.core.distributed import finalize_model_grads

    from repro.train import run as training
    from repro.train.megatron.groups import join_groups, leave_groups
    from repro.train.phases import read_phases

    torch.set_num_threads(1)
    gc.freeze()
    run = (full_run if _ON_GPU else small_run)(_BLOCKS * _BLOCK)
    times: dict[str, list[float]] = {"instrumented": [], "bare": []}
    with training.device_scope():
        join_groups(rank, _RANKS, "127.0.0.1", port)
        state = training.set_up(run, scratch)
        config = state.module.config
        instrumented = (config.timers, config.finalize_model_grads_func)
        for block in range(_BLOCKS):
            kind = "instrumented" if block % 2 else "bare"
            config.timers, config.finalize_model_grads_func = (
                instrumented if block % 2 else (None, finalize_model_grads)
            )
            if rank == 0:
                (sampling.set if block % 2 else sampling.clear)()
            for _ in range(_BLOCK):
                batches = [next(state.training)]
                torch.distributed.barrier()
                start = time.monotonic()
                training.iterate(state, batches)
                if block % 2:
                    read_phases(state.timers, time.monotonic() - start)
                torch.distributed.barrier()
                times[kind].append(time.monotonic() - start)
        leave_groups()
    answer.send(times)


def main() -> None:
    """Run the ranks and print the ratio."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    sampling = context.Event()
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = zip(*(context.Pipe() for _ in range(_RANKS)), strict=True)
        ranks = [
            context.Process(
                target=_rank,
                args=(rank, port, Path(scratch), sampling, theirs[rank]),
            )
            for rank in range(_RANKS)
        ]
        for process, end in zip(ranks, theirs, strict=True):
            process.start()
            end.close()
        while not ours[0].poll() and ranks[0].is_alive():
            # Read the counters of four nodes outside the ranks, as the supervisor does.
            if sampling.wait(1 / SAMPLES_PER_S):
                for _ in range(4):
                    Path("/proc/net/dev").read_text()
                time.sleep(1 / SAMPLES_PER_S)
        try:
            times = ours[0].recv()
        except EOFError:
            raise SystemExit("rank 0 ended without an answer; its error is printed above") from None
        finally:
            for process in ranks:
                process.terminate()
                process.join()
    blocks = {
        kind: np.median(np.reshape(values, (-1, _BLOCK)), axis=1)[1:]
        for kind, values in times.items()
    }
    ratios = blocks["instrumented"] / blocks["bare"]
    low, high = np.percentile(ratios, [25, 75])
    for kind, values in blocks.items():
        print(f"{kind:>12}: {1e3 * np.median(values):.2f} ms per iteration")
    print(f"ratio {np.median(ratios):.4f} (middle half {low:.4f}-{high:.4f}), budget {_BUDGET}")


if __name__ == "__main__":
    main()
