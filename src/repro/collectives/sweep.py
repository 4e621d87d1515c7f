"""Measure collectives on this rank, as nccl-tests does: sizes ascending, calls back to back."""

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from repro.catalog.collectives import Layout
from repro.collectives.definitions import PLACES
from repro.collectives.operations import Operation, prepare
from repro.collectives.records import CollectiveSweep, SweepRecord, Timing
from repro.errors import ReproError

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# A repeat is so long, or so many calls: one call of a small message is shorter than what ranks
# differ in when they leave a barrier.
_REPEAT_S = 0.01
_MOST_CALLS = 20

Counters = Callable[[], tuple[float, float]]


def sweep(
    asked: CollectiveSweep,
    counters: Counters | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> SweepRecord:
    """Measure on this rank what all ranks of the default process group are asked for.

    Parameters
    ----------
    counters
        Bytes that this rank's own network interface has received and sent so far; None where it
        shares one.
    report
        Called with the number of finished cases (collective, place, size), skipped ones included.

    Raises
    ------
    ReproError
        A collective returned wrong data; the message names it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    groups = {layout: _group(asked, layout) for layout in asked.layouts}
    found: list[Timing] = []
    done = 0
    for layout, group in groups.items():
        if group.size() == 1:
            done += asked.cases // len(asked.layouts)
            report(done)
            continue
        for collective in asked.collectives:
            for in_place in PLACES[collective]:
                sizes = _ascending(asked, layout, collective, in_place, group, device, counters)
                for count, measurement in enumerate(sizes, start=1):
                    found.append(measurement)
                    report(done + count)
                done += len(asked.sizes_bytes)
                report(done)
    for group in groups.values():
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    sizes_of = {layout: group.size() for layout, group in groups.items()}
    return SweepRecord(dist.get_rank(), sizes_of, tuple(found))


def _group(asked: CollectiveSweep, layout: Layout) -> dist.ProcessGroup:
    """This rank's group; all ranks form all groups."""
    ranks, each = dist.get_world_size(), asked.ranks_per_node
    if layout != "world" and ranks > each and ranks % each:
        raise ReproError(
            f"layout {layout}: {ranks} ranks do not fill nodes of {each}; take a multiple, or the "
            "layout world only"
        )
    if layout == "world":
        assert dist.group.WORLD is not None
        return dist.group.WORLD
    members = (
        [list(range(first, min(first + each, ranks))) for first in range(0, ranks, each)]
        if layout == "node"
        else [list(range(rail, ranks, each)) for rail in range(min(each, ranks))]
    )
    group: dist.ProcessGroup = dist.new_subgroups_by_enumeration(members)[0]  # type: ignore[no-untyped-call]
    return group


def _ascending(
    asked: CollectiveSweep,
    layout: Layout,
    collective: str,
    in_place: bool,
    group: dist.ProcessGroup,
    device: torch.device,
    counters: Counters | None,
) -> Iterator[Timing]:
    """Sizes up to the first whose call is too long."""
    for asked_bytes in asked.sizes_bytes:
        operation = prepare(collective, asked_bytes, in_place, group, _DTYPES[asked.dtype], device)
        if wrong := operation.wrong_elements():
            raise ReproError(
                f"{collective} of {asked_bytes} bytes: {wrong} wrong elements on rank "
                f"{dist.get_rank()}; what it takes means nothing"
            )
        operation.clear()
        *_, last_s = (_timed(operation, 1) for _ in range(max(1, asked.warmup)))
        one_call = _agreed(last_s, device)
        calls = max(1, min(_MOST_CALLS, math.ceil(_REPEAT_S / one_call)))
        before = _counted(counters)
        times = tuple(_timed(operation, calls) / calls for _ in range(asked.repeats))
        received, sent = (
            (after - first) / (calls * asked.repeats)
            for first, after in zip(before, _counted(counters), strict=True)
        )
        yield Timing(
            layout=layout,
            collective=collective,
            in_place=in_place,
            asked_bytes=asked_bytes,
            size_bytes=operation.size_bytes,
            calls=calls,
            time_s=times,
            sent_bytes=sent,
            received_bytes=received,
        )
        if one_call > asked.longest_call_s:
            return


def _timed(operation: Operation, calls: int) -> float:
    """Seconds from all ranks' being ready to the last call's end on this rank."""
    dist.barrier()
    _synchronise()
    start = time.monotonic()
    for _ in range(calls):
        operation.call()
    _synchronise()
    return time.monotonic() - start


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _agreed(seconds: float, device: torch.device) -> float:
    """The longest of all ranks, so that all decide alike."""
    longest = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)


def _counted(counters: Counters | None) -> tuple[float, float]:
    """Bytes received and sent, when nothing is under way any more."""
    if counters is None:
        return math.nan, math.nan
    dist.barrier()
    return counters()
