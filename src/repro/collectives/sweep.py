"""Measure collectives on this rank, as nccl-tests does: sizes ascending, calls back to back."""

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
from repro.observe.interleaving import Turns
from repro.observe.precision import is_known

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# A repeat is so long, or so many calls: one call of a small message is shorter than what ranks
# differ in when they leave a barrier.
_REPEAT_S = 0.01
_MOST_CALLS = 20

Counters = Callable[[], tuple[float, float]]


def sweep(
    asked: CollectiveSweep,
    counters: Counters | None = None,
    report: Callable[[int, str], None] = lambda *_: None,
    turns: Turns | None = None,
) -> tuple[SweepRecord, ...]:
    """Measure on this rank what all ranks of the default process group are asked for, by turn.

    Parameters
    ----------
    counters
        Bytes that this rank's own network interface has received and sent so far; None where it
        shares one.
    report
        Called with the number of finished cases (collective, place, size) of all turns, skipped
        ones included.
    turns
        Each measures everything, a repeat at a time.

    Raises
    ------
    ReproError
        A collective returned wrong data; the message names it.
    """
    turns = turns or Turns()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    groups = {layout: _group(asked, layout) for layout in asked.layouts}
    found: list[list[Timing]] = [[] for _ in range(turns.count)]
    done = 0
    for layout, group in groups.items():
        for collective in asked.collectives:
            for in_place in asked.places(collective):
                if group.size() > 1:
                    called = _Called(asked, layout, collective, in_place, group, device)
                    for turn, timings in enumerate(_take_turns(called, turns, counters)):
                        found[turn] += timings
                done += turns.count * len(asked.sizes_bytes)
                report(done, "")
    for group in groups.values():
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)
    sizes_of = {layout: group.size() for layout, group in groups.items()}
    return tuple(SweepRecord(dist.get_rank(), sizes_of, tuple(timings)) for timings in found)


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


@dataclass(frozen=True)
class _Called:
    """A collective between some ranks, to be called on messages of all sizes."""

    asked: CollectiveSweep
    layout: Layout
    collective: str
    in_place: bool
    group: dist.ProcessGroup
    device: torch.device
    operations: dict[int, Operation] = field(default_factory=dict)

    def operation(self, asked_bytes: int) -> Operation:
        """The call of one size: warm, and the first time on data that shows whether it is right."""
        if asked_bytes not in self.operations:
            dtype = _DTYPES[self.asked.dtype]
            made = prepare(
                self.collective, asked_bytes, self.in_place, self.group, dtype, self.device
            )
            if wrong := made.wrong_elements():
                raise ReproError(
                    f"{self.collective} of {asked_bytes} bytes: {wrong} wrong elements on rank "
                    f"{dist.get_rank()}; what it takes means nothing"
                )
            made.clear()
            for _ in range(self.asked.warmup):
                _timed(made, 1)
            self.operations[asked_bytes] = made
        return self.operations[asked_bytes]


@dataclass
class _Repeats:
    """What a call of one size took over one turn's links; `of_all_ranks_s` is the slowest rank's,
    and bytes those of the first repeat: counting takes barriers, and they are the same in each."""

    calls: int
    sent_bytes: float
    received_bytes: float
    time_s: list[float]
    of_all_ranks_s: list[float] = field(default_factory=list)

    def ended(self, asked: CollectiveSweep) -> bool:
        """Whether there are enough; the same on all ranks."""
        count = len(self.time_s)
        enough = is_known(self.of_all_ranks_s, asked.half_interval)
        return count >= asked.most_repeats or (count >= asked.repeats and enough)


def _take_turns(called: _Called, turns: Turns, counters: Counters | None) -> Iterator[list[Timing]]:
    """Every size over every turn's links; each turn's ends with the first that takes too long."""
    asked = called.asked
    found: list[dict[int, _Repeats]] = [{} for _ in range(turns.count)]
    for turn in turns.rounds(lambda turn: all(one.ended(asked) for one in found[turn].values())):
        if found[turn]:
            measured = {size: one for size, one in found[turn].items() if not one.ended(asked)}
            for asked_bytes, repeats in measured.items():
                repeats.time_s.append(_timed(called.operation(asked_bytes), repeats.calls))
        else:
            measured = found[turn] = _first_repeats(called, counters)
        last_s = [repeats.time_s[-1] for repeats in measured.values()]
        slowest_s = _agreed(last_s, called.device)
        for repeats, seconds in zip(measured.values(), slowest_s, strict=True):
            repeats.of_all_ranks_s.append(seconds)
    for done in found:
        yield [
            Timing(
                layout=called.layout,
                collective=called.collective,
                in_place=called.in_place,
                asked_bytes=asked_bytes,
                size_bytes=called.operation(asked_bytes).size_bytes,
                calls=repeats.calls,
                time_s=tuple(repeats.time_s),
                sent_bytes=repeats.sent_bytes,
                received_bytes=repeats.received_bytes,
            )
            for asked_bytes, repeats in done.items()
        ]


def _first_repeats(called: _Called, counters: Counters | None) -> dict[int, _Repeats]:
    """A repeat of every size, up to the first of which a call takes too long."""
    asked = called.asked
    found: dict[int, _Repeats] = {}
    for asked_bytes in asked.sizes_bytes:
        operation = called.operation(asked_bytes)
        one = _first_repeat(operation, 1, counters)
        (one_call_s,) = _agreed(one.time_s, called.device)
        calls = min(_MOST_CALLS, math.ceil(_REPEAT_S / one_call_s))
        found[asked_bytes] = one if calls == 1 else _first_repeat(operation, calls, counters)
        if one_call_s > asked.longest_call_s:
            break
    return found


def _timed(operation: Operation, calls: int) -> float:
    """Seconds a call, from all ranks' being ready to the last call's end on this rank."""
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


def _agreed(seconds: list[float], device: torch.device) -> list[float]:
    """The longest of all ranks, one by one, so that all decide alike."""
    longest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    found: list[float] = longest.tolist()
    return found


def _first_repeat(operation: Operation, calls: int, counters: Counters | None) -> _Repeats:
    received, sent = _counted(counters)
    time_s = _timed(operation, calls)
    received_then, sent_then = _counted(counters)
    return _Repeats(calls, (sent_then - sent) / calls, (received_then - received) / calls, [time_s])


def _counted(counters: Counters | None) -> tuple[float, float]:
    """Bytes received and sent, when nothing is under way any more."""
    if counters is None:
        return math.nan, math.nan
    dist.barrier()
    return counters()
