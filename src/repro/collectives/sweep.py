"""Measurement of collectives as in nccl-tests: ascending sizes, calls back to back."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from repro.catalog.studies.collectives import Layout
from repro.collectives.operations import Operation, prepare
from repro.collectives.records import CollectiveSweep, SweepRecord, Timing
from repro.errors import ReproError
from repro.observe.interleaving import InterleavedRuns
from repro.observe.precision import reached_target_precision

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# A repeat takes this long, or has this many calls. One call of a small message takes less time than
# ranks differ by when they leave a barrier.
_REPEAT_S = 0.01
_MOST_CALLS = 20

Counters = Callable[[], tuple[float, float]]


def sweep(
    config: CollectiveSweep,
    counters: Counters | None = None,
    report: Callable[[int, str], None] = lambda *_: None,
    runs: InterleavedRuns | None = None,
) -> tuple[SweepRecord, ...]:
    """Measure collectives on this rank, and return one record per run.

    All ranks of the default process group must call this.

    Parameters
    ----------
    config
        Collectives to measure in each run.
    counters
        Returns the bytes that this rank's network interface has received and sent so far. None if
        ranks share an interface.
    report
        Called with the number of finished configurations (collective, place, size) of all runs,
        including skipped ones.
    runs
        Runs to interleave, one repeat at a time; by default a single one.

    Raises
    ------
    ReproError
        The ranks do not fill the nodes of a layout, or a collective returned wrong data.
    """
    runs = runs or InterleavedRuns()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    groups = {layout: _group(config, layout) for layout in config.layouts}
    measured: list[list[Timing]] = [[] for _ in range(runs.count)]
    done = 0
    for layout, group in groups.items():
        for collective in config.collectives:
            for in_place in config.places(collective):
                if group.size() > 1:
                    calls = _Calls(config, layout, collective, in_place, group, device)
                    for run, timings in enumerate(_measure_runs(calls, runs, counters)):
                        measured[run] += timings
                done += runs.count * len(config.sizes_bytes)
                report(done, "")
    for group in groups.values():
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    sizes_of = {layout: group.size() for layout, group in groups.items()}
    return tuple(SweepRecord(dist.get_rank(), sizes_of, tuple(timings)) for timings in measured)


def _group(config: CollectiveSweep, layout: Layout) -> dist.ProcessGroup:
    """Create all groups of a layout, and return this rank's group."""
    ranks, each = dist.get_world_size(), config.ranks_per_node
    if layout != "world" and ranks > each and ranks % each:
        raise ReproError(
            f"layout {layout}: {ranks} ranks do not fill nodes of {each}; fix: use a multiple of "
            f"{each} ranks, or only the layout world"
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


@dataclass(frozen=True)
class _Calls:
    """Calls of one collective in one process group, by size."""

    config: CollectiveSweep
    layout: Layout
    collective: str
    in_place: bool
    group: dist.ProcessGroup
    device: torch.device
    operations: dict[int, Operation] = field(default_factory=dict)

    def operation(self, requested_bytes: int) -> Operation:
        """Return the call of one size; the first time, verify its result and warm it up."""
        if requested_bytes not in self.operations:
            dtype = _DTYPES[self.config.dtype]
            operation = prepare(
                self.collective, requested_bytes, self.in_place, self.group, dtype, self.device
            )
            if wrong := operation.wrong_elements():
                raise ReproError(
                    f"{self.collective} of {requested_bytes} bytes: wrong result: {wrong} elements "
                    f"differ on rank {dist.get_rank()}, so its time is invalid; fix: check the "
                    "communication library"
                )
            operation.clear()
            for _ in range(self.config.warmup):
                _timed(operation, 1)
            self.operations[requested_bytes] = operation
        return self.operations[requested_bytes]


@dataclass
class _Repeats:
    """Repeats of one size in one run.

    `slowest_s` are the times of the slowest rank. Bytes are those of the first repeat: they are
    the same in each, and counting them takes barriers.
    """

    calls: int
    sent_bytes: float
    received_bytes: float
    time_s: list[float]
    slowest_s: list[float] = field(default_factory=list)

    def ended(self, config: CollectiveSweep) -> bool:
        """Whether there are enough repeats; the same on all ranks."""
        count = len(self.time_s)
        precise = reached_target_precision(self.slowest_s, config.half_interval)
        return count >= config.most_repeats or (count >= config.repeats and precise)


def _measure_runs(
    calls: _Calls, runs: InterleavedRuns, counters: Counters | None
) -> Iterator[list[Timing]]:
    """Measure all sizes in every run, and yield each run's timings.

    A run's sizes end with the first that takes too long.
    """
    config = calls.config
    repeats_of: list[dict[int, _Repeats]] = [{} for _ in range(runs.count)]

    def ended(run: int) -> bool:
        return all(repeats.ended(config) for repeats in repeats_of[run].values())

    for run in runs.round_robin(ended):
        if repeats_of[run]:
            current = {at: one for at, one in repeats_of[run].items() if not one.ended(config)}
            for requested_bytes, repeats in current.items():
                repeats.time_s.append(_timed(calls.operation(requested_bytes), repeats.calls))
        else:
            current = repeats_of[run] = _first_repeats(calls, counters)
        last_s = [repeats.time_s[-1] for repeats in current.values()]
        slowest_s = _of_slowest_rank(last_s, calls.device)
        for repeats, seconds in zip(current.values(), slowest_s, strict=True):
            repeats.slowest_s.append(seconds)
    for by_size in repeats_of:
        yield [
            Timing(
                layout=calls.layout,
                collective=calls.collective,
                in_place=calls.in_place,
                requested_bytes=requested_bytes,
                size_bytes=calls.operation(requested_bytes).size_bytes,
                calls=repeats.calls,
                time_s=tuple(repeats.time_s),
                sent_bytes=repeats.sent_bytes,
                received_bytes=repeats.received_bytes,
            )
            for requested_bytes, repeats in by_size.items()
        ]


def _first_repeats(calls: _Calls, counters: Counters | None) -> dict[int, _Repeats]:
    """Measure one repeat of each size, up to the first size whose call takes too long."""
    first: dict[int, _Repeats] = {}
    for requested_bytes in calls.config.sizes_bytes:
        operation = calls.operation(requested_bytes)
        single = _first_repeat(operation, 1, counters)
        (call_s,) = _of_slowest_rank(single.time_s, calls.device)
        count = min(_MOST_CALLS, math.ceil(_REPEAT_S / call_s))
        first[requested_bytes] = single if count == 1 else _first_repeat(operation, count, counters)
        if call_s > calls.config.longest_call_s:
            break
    return first


def _timed(operation: Operation, calls: int) -> float:
    """Return the seconds per call, from a barrier to the last call's end on this rank."""
    dist.barrier()
    _synchronise()
    start = time.monotonic()
    for _ in range(calls):
        operation.call()
    _synchronise()
    return (time.monotonic() - start) / calls


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _of_slowest_rank(seconds: list[float], device: torch.device) -> list[float]:
    """Return the maximum of each value over all ranks, so that all ranks decide alike."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    values: list[float] = longest.tolist()
    return values


def _first_repeat(operation: Operation, calls: int, counters: Counters | None) -> _Repeats:
    received, sent = _read_when_idle(counters)
    time_s = _timed(operation, calls)
    received_then, sent_then = _read_when_idle(counters)
    return _Repeats(calls, (sent_then - sent) / calls, (received_then - received) / calls, [time_s])


def _read_when_idle(counters: Counters | None) -> tuple[float, float]:
    """Read received and sent bytes after a barrier; NaN without counters."""
    if counters is None:
        return math.nan, math.nan
    dist.barrier()
    return counters()
