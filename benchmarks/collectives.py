"""What the sweep of collectives costs: its bus bandwidth against that of the same calls made bare.

Two ranks on the loopback call all-reduce, all-gather and reduce-scatter in place, 1 to 192 MiB.
Each repeat of `repro.collectives.sweep` has a neighbour in the same run, now before and now after
it, so that both see the same machine: a barrier and a plain loop of as many calls on the same
buffers. Prints by size the median of the paired ratios of bus bandwidths (budget: at least 0.99),
with its 95 % interval, and whether that is within the budget; other work on the machine makes it
wide. Then, where emulated nodes can run, the bus bandwidth of an all-reduce among
eight ranks over what the slowest link carried when it was checked. Takes about five minutes.

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
from repro.launch.messages import Order, Site
from repro.launch.ranks.sites import open_site
from repro.results.collectives import bandwidths, median_ranks, sweep_dataset
from repro.results.outcome import Outcome

_MIB = 1 << 20
_RANKS = 2
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
# Repeats by size: more where one takes less.
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

# Of one rank, by collective and size: seconds of a call in every repeat, the sweep's and bare.
Times = dict[tuple[str, int], tuple[tuple[float, ...], tuple[float, ...]]]


def _asked(collective: str, sizes_bytes: tuple[int, ...], repeats: int) -> CollectiveSweep:
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
        given, result = operation.given, operation.result
        call = {
            "all_reduce": lambda: dist.all_reduce(result),
            "all_gather": lambda: dist.all_gather_into_tensor(result, given),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(result, given),
        }[collective]
        dist.barrier()
        start = time.monotonic()
        for _ in range(calls):
            call()
        return (time.monotonic() - start) / calls

    def pairs(collective: str, asked: CollectiveSweep) -> tuple[tuple[float, ...], ...]:
        """The sweep's repeats, and their neighbours."""
        neighbours: list[float] = []

        def both(operation: Operation, calls: int) -> float:
            before = len(neighbours) % 2
            if before:
                neighbours.append(bare(collective, operation, calls))
            seconds = timed(operation, calls)
            if not before:
                neighbours.append(bare(collective, operation, calls))
            return seconds

        with mock.patch.object(sweeping, "_timed", both):
            (found,) = sweeping.sweep(asked)[0].measurements
        return found.time_s, tuple(neighbours[_WARMUP:])

    torch.set_num_threads(1)
    gc.freeze()
    found: Times = {}
    with device_scope(), mock.patch.dict(PLACES, dict.fromkeys(_COLLECTIVES, (True,))):
        join_groups(rank, _RANKS, "127.0.0.1", port)
        for collective in _COLLECTIVES:
            for size, repeats in _REPEATS.items():
                swept, neighbours = pairs(collective, _asked(collective, (size,), repeats))
                found[collective, size] = swept, neighbours
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
    print(f"{'collective':>14} {'MiB':>4} {'sweep':>7} {'bare':>7} GB/s  ratio (95 % interval)")
    together = []
    for collective, size in found[0]:
        # (kind, repeat): a repeat's time is that of its slowest rank.
        slowest = np.array([times[collective, size] for times in found]).max(axis=0)
        swept, bare = busbw_GBps(collective, _RANKS, size, slowest)
        together.append(swept / bare)
        print(
            f"{collective:>14} {size // _MIB:4} {np.median(swept):7.3f} {np.median(bare):7.3f}"
            f"       {_ratio(together[-1])}"
        )
    print(f"{'all of them':>14}{'':27}{_ratio(np.concatenate(together))}")


def _ratio(ratios: np.ndarray) -> str:
    """Their median, its interval, and what that says of the budget."""
    low, high = np.sort(ratios)[list(median_ranks(len(ratios)))]
    if low >= _BUDGET:
        verdict = "within the budget"
    elif high < _BUDGET:
        verdict = "below the budget"
    else:
        verdict = "too noisy to say"
    return f"{np.median(ratios):.4f} ({low:.4f}-{high:.4f}), {verdict}"


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
