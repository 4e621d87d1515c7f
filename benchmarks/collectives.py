"""Overhead of the collective sweep: its bus bandwidth compared with a bare loop of the same calls.

Two ranks on the loopback call all-reduce, all-gather and reduce-scatter in place, 1 to 192 MiB.
Each repeat of `repro.collectives.sweep` is paired with a barrier and a bare loop of as many calls
on the same buffers. The loop runs alternately before and after the repeat, so that drift of the
machine affects both alike. Prints per size the median of the paired ratios of bus bandwidths
(budget: at least 0.99), its 95 % interval, and whether it is within the budget. Other processes on
the machine widen the interval.

If emulated nodes can run, also prints the bus bandwidth of an all-reduce among eight ranks, over
the measured rate of the slowest link. Takes about five minutes.

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

from repro.catalog.systems.topology import Level, Topology
from repro.collectives.definitions import busbw_GBps
from repro.collectives.records import CollectiveSweep
from repro.errors import NotRunHere
from repro.launch.ranks.pool import open_pool
from repro.launch.request import PoolSpec, Request
from repro.results.collectives import bandwidths, median_ranks, sweep_dataset
from repro.results.outcome import Outcome

_MIB = 1 << 20
_RANKS = 2
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
# Repeats by size: more if one takes less time.
_REPEATS = {_MIB: 1000, 4 * _MIB: 800, 16 * _MIB: 400, 64 * _MIB: 120, 192 * _MIB: 40}
_WARMUP = 1
_BUDGET = 0.99
_TOPOLOGY = Topology(
    levels=(
        Level(name="node", members=2, link_gbps=1.0),
        Level(name="fabric", members=4, link_gbps=0.8),
    )
)
_TESTBED_SIZES = (4 * _MIB, 16 * _MIB)

# Seconds per call in each repeat of one rank, (sweep, bare), by collective and size.
Times = dict[tuple[str, int], tuple[tuple[float, ...], tuple[float, ...]]]


def _config(collective: str, sizes_bytes: tuple[int, ...], repeats: int) -> CollectiveSweep:
    return CollectiveSweep(
        collectives=(collective,),
        sizes_bytes=sizes_bytes,
        layouts=("world",),
        ranks_per_node=2,
        dtype="fp32",
        warmup=_WARMUP,
        repeats=repeats,
        most_repeats=repeats,
        longest_call_s=60.0,
    )


def _rank(rank: int, port: int, answer: Connection) -> None:
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    import torch
    import torch.distributed as dist

    from repro.collectives import sweep as sweeping
    from repro.collectives.definitions import PLACES
    from repro.collectives.operations import Operation
    from repro.train.megatron.groups import join_groups, leave_groups
    from repro.train.run import device_scope

    timed = sweeping._timed

    def bare(collective: str, operation: Operation, calls: int) -> float:
        input, output = operation.input, operation.output
        call = {
            "all_reduce": lambda: dist.all_reduce(output),
            "all_gather": lambda: dist.all_gather_into_tensor(output, input),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(output, input),
        }[collective]
        dist.barrier()
        start = time.monotonic()
        for _ in range(calls):
            call()
        return (time.monotonic() - start) / calls

    def measure_pairs(collective: str, config: CollectiveSweep) -> tuple[tuple[float, ...], ...]:
        """Return the times of the sweep's repeats, and of the bare loops paired with them."""
        bare_s: list[float] = []

        def both(operation: Operation, calls: int) -> float:
            before = len(bare_s) % 2
            if before:
                bare_s.append(bare(collective, operation, calls))
            seconds = timed(operation, calls)
            if not before:
                bare_s.append(bare(collective, operation, calls))
            return seconds

        with mock.patch.object(sweeping, "_timed", both):
            (timing,) = sweeping.sweep(config)[0].measurements
        return timing.time_s, tuple(bare_s[_WARMUP:])

    torch.set_num_threads(1)
    gc.freeze()
    times: Times = {}
    with device_scope(), mock.patch.dict(PLACES, dict.fromkeys(_COLLECTIVES, (True,))):
        join_groups(rank, _RANKS, "127.0.0.1", port)
        for collective in _COLLECTIVES:
            for size, repeats in _REPEATS.items():
                swept, bare_s = measure_pairs(collective, _config(collective, (size,), repeats))
                times[collective, size] = swept, bare_s
        leave_groups()
    answer.send(times)


def _on_loopback() -> list[Times]:
    """Return the measurements of both ranks."""
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
    by_rank = [pipe.recv() for pipe in ours]
    for process in ranks:
        process.join()
    return by_rank


def _print_ratios(by_rank: list[Times]) -> None:
    print(f"{'collective':>14} {'MiB':>4} {'sweep':>7} {'bare':>7} GB/s  ratio (95 % interval)")
    ratios = []
    for collective, size in by_rank[0]:
        # (kind, repeat): a repeat's time is that of its slowest rank.
        slowest = np.array([times[collective, size] for times in by_rank]).max(axis=0)
        swept, bare = busbw_GBps(collective, _RANKS, size, slowest)
        ratios.append(swept / bare)
        print(
            f"{collective:>14} {size // _MIB:4} {np.median(swept):7.3f} {np.median(bare):7.3f}"
            f"       {_ratio(ratios[-1])}"
        )
    print(f"{'all':>14}{'':27}{_ratio(np.concatenate(ratios))}")


def _ratio(ratios: np.ndarray) -> str:
    """Return the median, its interval, and whether it is within the budget."""
    low, high = np.sort(ratios)[list(median_ranks(len(ratios)))]
    if low >= _BUDGET:
        verdict = "within the budget"
    elif high < _BUDGET:
        verdict = "below the budget"
    else:
        verdict = "too noisy to decide"
    return f"{np.median(ratios):.4f} ({low:.4f}-{high:.4f}), {verdict}"


def _print_testbed() -> None:
    """Print the bus bandwidth among eight ranks, as a fraction of the slowest link's rate."""
    config = _config("all_reduce", _TESTBED_SIZES, repeats=6)
    rates = {level.name: level.link_gbps for level in _TOPOLOGY.levels}
    try:
        with open_pool(PoolSpec(_TOPOLOGY, _TOPOLOGY.gpus, cores=None)) as session:
            outcome = session.run(Request({}, config, _TOPOLOGY.gpus, rates))
    except NotRunHere as reason:
        print(f"emulated nodes: not run on this machine: {reason}")
        return
    assert isinstance(outcome, Outcome)
    slowest = min(rate for check in outcome.links for rate in check.carried_gbps) / 8
    results = bandwidths(sweep_dataset("testbed", "rdma", _TOPOLOGY.gpus, config, outcome))
    print(f"emulated nodes, all_reduce among 8 ranks; slowest link: {slowest:.4f} GB/s")
    for place in ("out of place", "in place"):
        busbw = results["busbw_GBps"].sel(in_place=place).squeeze()
        for size in _TESTBED_SIZES:
            rate = float(busbw.sel(size_bytes=size))
            print(f"{size // _MIB:4} MiB, {place}: {rate:.4f} GB/s, ratio {rate / slowest:.3f}")


def main() -> None:
    """Measure on the loopback, then on emulated nodes, and print the results."""
    _print_ratios(_on_loopback())
    _print_testbed()


if __name__ == "__main__":
    main()
