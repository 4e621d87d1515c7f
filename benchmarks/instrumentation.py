"""What timers, barriers and NIC sampling cost: instrumented against bare Megatron-Core.

Two ranks on the loopback train GPT-2-Medium's testbed model on the pipeline's corpus; blocks of
iterations with and without instrumentation alternate in one run, so that both see the same machine.
Prints the ratio of the medians (budget: 1.02).

    python benchmarks/instrumentation.py
"""

import multiprocessing
import socket
import tempfile
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from repro.catalog.models import model
from repro.paths import ENWIKI
from repro.train.records import TrainingRun

_RANKS = 2
_BLOCKS = 40
_BLOCK = 5
_BUDGET = 1.02


def _counters() -> list[tuple[int, int]]:
    """Counters of four nodes, as often as the testbed reads them."""
    with open("/proc/net/dev", encoding="ascii") as file:
        fields = file.read().splitlines()[-1].split()
    return [(int(fields[1]), int(fields[9]))] * 4


def _rank(rank: int, port: int, scratch: Path, answer: Connection) -> None:
    import torch
    from megatron.core.distributed import finalize_model_grads

    from repro.observe.nic import sample_counters
    from repro.train import run as training
    from repro.train.groups import join_groups, leave_groups
    from repro.train.phases import read_phases

    torch.set_num_threads(1)
    run = TrainingRun(
        family="gpt",
        shape=model("gpt2-medium").testbed,
        precision="fp32",
        micro_batch_size=4,
        microbatches=1,
        warmup=0,
        iterations=_BLOCKS * _BLOCK,
        save_every=0,
        validate_every=0,
        validation_batches=1,
        corpus=ENWIKI,
        split="95,5",
    )
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
            sampling = sample_counters(_counters) if block % 2 and rank == 0 else nullcontext()
            with sampling:
                for _ in range(_BLOCK):
                    data = iter([next(state.training)])
                    torch.distributed.barrier()
                    start = time.monotonic()
                    training.iterate(state, data)
                    if block % 2:
                        read_phases(state.timers, time.monotonic() - start)
                    torch.distributed.barrier()
                    times[kind].append(time.monotonic() - start)
        leave_groups()
    answer.send(times)


def main() -> None:
    """Run both ranks and print the ratio."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch:
        ours, theirs = zip(*(context.Pipe() for _ in range(_RANKS)), strict=True)
        ranks = [
            context.Process(target=_rank, args=(rank, port, Path(scratch), theirs[rank]))
            for rank in range(_RANKS)
        ]
        for process in ranks:
            process.start()
        times = ours[0].recv()
        for process in ranks:
            process.join()
    blocks = {
        kind: np.median(np.reshape(values, (-1, _BLOCK)), axis=1)[1:]
        for kind, values in times.items()
    }
    ratios = blocks["instrumented"] / blocks["bare"]
    low, high = np.percentile(ratios, [25, 75])
    for kind, values in blocks.items():
        print(f"{kind:>12}: {1e3 * np.median(values):.2f} ms an iteration")
    print(f"ratio {np.median(ratios):.4f} (middle half {low:.4f}-{high:.4f}), budget {_BUDGET}")


if __name__ == "__main__":
    main()
