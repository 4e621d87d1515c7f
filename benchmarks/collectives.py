"""What the sweep of collectives costs: its bus bandwidth against that of the same calls made bare.

Two ranks on the loopback call all-reduce, all-gather and reduce-scatter in place, 1 to 192 MiB:
once through `repro.collectives.sweep`, once in a plain loop on the same buffers with a barrier
before each repeat. Blocks of either kind alternate in one run, so that both see the same machine.
Prints by size the median of the paired ratios of bus bandwidths (budget: at least 0.99). Then,
where emulated nodes can run, the bus bandwidth of an all-reduce among eight ranks over what the
slowest link carried when it was checked.

    python benchmarks/collectives.py
"""

import gc
import multiprocessing
import os
import socket
import time
from multiprocessing.connection import Connection
from unittest import mock

import numpy as np

from repro.catalog.topology import Level, Topology
from repro.collectives.definitions import busbw_GBps
from repro.collectives.records import CollectiveSweep
from repro.errors import NotRunHere
from repro.launch.messages import Order, Outcome, Site
from repro.launch.sites import open_site
from repro.results.collectives import bandwidths, sweep_dataset

_MIB = 1 << 20
_RANKS = 2
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
# Pairs of blocks by size: more where one takes less.
_PAIRS = {_MIB: 40, 4 * _MIB: 40, 16 * _MIB: 24, 64 * _MIB: 12, 192 * _MIB: 8}
_REPEATS = 3
_BUDGET = 0.99
_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=2, link_gbps=1.0),
        Level(name="fabric", members=4, link_gbps=0.8),
    )
)
_TESTBED_SIZES = (4 * _MIB, 16 * _MIB)

# Of one rank: by collective and size, seconds of a call in every repeat (pair, kind, repeat).
Times = dict[tuple[str, int], list[tuple[tuple[float, ...], tuple[float, ...]]]]


def _asked(collective: str, sizes_bytes: tuple[int, ...], repeats: int) -> CollectiveSweep:
    return CollectiveSweep(
        collectives=(collective,),
        sizes_bytes=sizes_bytes,
        layouts=("world",),
        ranks_per_node=2,
        dtype="fp32",
        warmup=1,
        repeats=repeats,
        longest_call_s=60.0,
    )


def _rank(rank: int, port: int, answer: Connection) -> None:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    import torch
    import torch.distributed as dist

    from repro.collectives.operations import PLACES, Operation, prepare
    from repro.collectives.sweep import sweep
    from repro.train.groups import join_groups, leave_groups
    from repro.train.run import device_scope

    def swept(operation: Operation, asked: CollectiveSweep) -> tuple[tuple[float, ...], int]:
        """Repeats of the sweep on these buffers, and the calls in each."""
        with mock.patch("repro.collectives.sweep.prepare", lambda *arguments: operation):
            (found,) = sweep(asked).measurements
        return found.time_s, found.calls

    def bare(operation: Operation, collective: str, calls: int) -> tuple[float, ...]:
        """As many repeats of as many calls, after one to warm up."""
        given, result = operation.given, operation.result
        call = {
            "all_reduce": lambda: dist.all_reduce(result),
            "all_gather": lambda: dist.all_gather_into_tensor(result, given),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(result, given),
        }[collective]
        call()
        times = []
        for _ in range(_REPEATS):
            dist.barrier()
            start = time.monotonic()
            for _ in range(calls):
                call()
            times.append((time.monotonic() - start) / calls)
        return tuple(times)

    torch.set_num_threads(1)
    gc.freeze()
    found: Times = {}
    with device_scope(), mock.patch.dict(PLACES, dict.fromkeys(_COLLECTIVES, (True,))):
        join_groups(rank, _RANKS, "127.0.0.1", port)
        world = dist.group.WORLD
        assert world is not None
        for collective in _COLLECTIVES:
            for size, pairs in _PAIRS.items():
                asked = _asked(collective, (size,), _REPEATS)
                operation = prepare(
                    collective, size, True, world, torch.float32, torch.device("cpu")
                )
                _, calls = swept(operation, asked)
                blocks = []
                for pair in range(pairs):
                    # Each kind comes first in every other pair.
                    before = bare(operation, collective, calls) if pair % 2 else None
                    times, calls_now = swept(operation, asked)
                    after = before or bare(operation, collective, calls_now)
                    blocks.append((times, after))
                    calls = calls_now
                found[collective, size] = blocks
        leave_groups()
    answer.send(found)


def _on_the_loopback() -> list[Times]:
    """What both ranks measured."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ours, theirs = zip(*(context.Pipe() for _ in range(_RANKS)), strict=True)
    ranks = [
        context.Process(target=_rank, args=(rank, port, theirs[rank])) for rank in range(_RANKS)
    ]
    for process in ranks:
        process.start()
    found = [pipe.recv() for pipe in ours]
    for process in ranks:
        process.join()
    return found


def _print_ratios(found: list[Times]) -> None:
    print(f"{'collective':>14} {'MiB':>4} {'sweep':>7} {'bare':>7} GB/s   ratio (middle half)")
    for collective, size in found[0]:
        # (pair, kind, repeat): a repeat's time is that of its slowest rank.
        slowest = np.array([times[collective, size] for times in found]).max(axis=0)
        swept, bare = busbw_GBps(collective, _RANKS, size, np.median(slowest, axis=2)).T
        low, middle, high = np.percentile(swept / bare, [25, 50, 75])
        print(
            f"{collective:>14} {size // _MIB:4} {np.median(swept):7.3f} {np.median(bare):7.3f}"
            f"        {middle:.4f} ({low:.4f}-{high:.4f})"
            f"{'' if middle >= _BUDGET else f'  below the budget of {_BUDGET}'}"
        )


def _print_testbed() -> None:
    """Bus bandwidth among eight ranks, as a share of the slowest link's rate."""
    asked = _asked("all_reduce", _TESTBED_SIZES, repeats=6)
    rates = {level.name: level.link_gbps for level in _TOPOLOGY.levels}
    try:
        with open_site(Site(_TOPOLOGY, _TOPOLOGY.gpus, cores=None)) as session:
            outcome = session.run(Order(asked, _TOPOLOGY.gpus, rates))
    except NotRunHere as reason:
        print(f"emulated nodes: not run here: {reason}")
        return
    assert isinstance(outcome, Outcome)
    slowest = min(rate for check in outcome.links for rate in check.carried_gbps) / 8
    results = bandwidths(sweep_dataset("testbed", "rdma", _TOPOLOGY.gpus, asked, outcome))
    print(f"emulated nodes, all_reduce among 8 ranks; the slowest link carried {slowest:.4f} GB/s")
    for place in ("out of place", "in place"):
        busbw = results["busbw_GBps"].sel(in_place=place).squeeze()
        for size in _TESTBED_SIZES:
            found = float(busbw.sel(size_bytes=size))
            print(f"{size // _MIB:4} MiB, {place}: {found:.4f} GB/s, {found / slowest:.3f} of it")


def main() -> None:
    """Measure on the loopback, then on emulated nodes, and print both."""
    _print_ratios(_on_the_loopback())
    _print_testbed()


if __name__ == "__main__":
    main()
