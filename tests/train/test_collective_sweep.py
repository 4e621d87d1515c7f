"""A sweep's own data check passes for every collective, and it keeps its promises on all ranks."""

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

from repro.catalog.studies.collectives import COLLECTIVES, Element, Layout
from repro.collectives.definitions import PLACES
from repro.collectives.operations import Operation, prepare
from repro.collectives.records import CollectiveSweep, SweepRecord, Timing
from repro.collectives.sweep import sweep
from repro.errors import ReproError

pytestmark = pytest.mark.slow

_LAYOUTS: tuple[Layout, ...] = ("world", "node", "rail")
_PLACES = [(name, place) for name in COLLECTIVES for place in PLACES[name]]
# Smaller than an element a rank; no multiple of anything; more than one of gloo's and of the ring's
# segments; and a round one.
_SIZES = (8, 1000, 65536, 600_001)
_WIDTH = {"fp32": 4, "fp16": 2, "bf16": 2}
_ALL = CollectiveSweep(
    collectives=COLLECTIVES,
    sizes_bytes=_SIZES,
    layouts=_LAYOUTS,
    ranks_per_node=2,
    dtype="fp32",
    warmup=1,
    repeats=2,
    most_repeats=2,
    longest_call_s=60.0,
)
# Of whose sizes all ranks have shares.
_SHARED = ("all_gather", "reduce_scatter", "all_to_all")


def _swept(asked: CollectiveSweep) -> tuple[SweepRecord, list[int]]:
    """A rank's task: its record, and what it reported."""
    reports: list[int] = []
    (record,) = sweep(asked, report=lambda done, _: reports.append(done))
    return record, reports


def _cases_of(record: SweepRecord) -> list[tuple[str, str, bool, int]]:
    return [(m.layout, m.collective, m.in_place, m.requested_bytes) for m in record.measurements]


@pytest.mark.parametrize(
    ("ranks", "dtype", "layouts", "groups"),
    [
        (2, "fp32", _LAYOUTS, {"world": 2, "node": 2, "rail": 1}),
        (3, "fp16", ("world",), {"world": 3}),
        (4, "bf16", _LAYOUTS, {"world": 4, "node": 2, "rail": 2}),
        (8, "fp32", ("node", "rail"), {"node": 2, "rail": 4}),
        (8, "fp16", ("world",), {"world": 8}),
        (8, "bf16", ("world",), {"world": 8}),
    ],
)
def test_every_collective_is_measured_and_right(
    pool: RankPool, ranks: int, dtype: Element, layouts: tuple[Layout, ...], groups: dict[str, int]
) -> None:
    asked = replace(_ALL, dtype=dtype, layouts=layouts)
    answers = pool.run(_swept, asked, ranks=ranks)
    records = [record for record, _ in answers]

    assert [record.rank for record in records] == list(range(ranks))
    wanted = [
        (layout, *case, size)
        for layout in layouts
        if groups[layout] > 1
        for case in _PLACES
        for size in _SIZES
    ]
    for record, reports in answers:
        assert record.group_ranks == groups
        assert _cases_of(record) == wanted
        assert reports == sorted(reports)
        assert reports[-1] == asked.configurations == len(layouts) * len(_PLACES) * len(_SIZES)
        for found in record.measurements:
            _check_size(found, groups[found.layout], _WIDTH[dtype])
            assert len(found.time_s) == asked.repeats
            assert min(found.time_s) > 0
            # Ranks here share the loopback.
            assert found.sent_bytes != found.sent_bytes
            assert found.received_bytes != found.received_bytes
    for calls in zip(*([m.calls for m in record.measurements] for record in records), strict=True):
        assert len(set(calls)) == 1 and calls[0] >= 1


def _check_size(found: Timing, ranks: int, width: int) -> None:
    """The asked size, rounded up to whole elements, of each rank where ranks have shares."""
    unit = width * (ranks if found.collective in _SHARED else 1)
    assert found.size_bytes % unit == 0
    assert found.requested_bytes <= found.size_bytes < found.requested_bytes + unit


def test_sizes_end_with_the_first_call_that_is_too_long(pool: RankPool) -> None:
    asked = replace(_ALL, longest_call_s=1e-9, layouts=("world",))
    for record, reports in pool.run(_swept, asked, ranks=2):
        assert _cases_of(record) == [("world", *case, _SIZES[0]) for case in _PLACES]
        assert reports[-1] == asked.configurations


def _swept_by_bytes(asked: CollectiveSweep) -> list[int]:
    """A rank's task: the calls in a repeat of each size, where a byte takes 1 us on rank 0 and
    2 us on rank 1."""
    with mock.patch("repro.collectives.sweep._timed", _time_of_bytes):
        (record,) = sweep(asked)
    return [m.calls for m in record.measurements if not m.in_place]


def _time_of_bytes(operation: Operation, calls: int) -> float:
    return 1e-6 * (1 + dist.get_rank()) * operation.size_bytes * calls


def test_a_repeat_is_ten_ms_of_the_slowest_rank_or_twenty_calls(pool: RankPool) -> None:
    asked = replace(
        _ALL, collectives=("all_reduce",), sizes_bytes=(8, 1000, 1 << 20), layouts=("world",)
    )
    assert pool.run(_swept_by_bytes, asked, ranks=2) == [[20, 5, 1]] * 2


def _refused(asked: CollectiveSweep) -> str:
    """A rank's task: what a sweep says when all-reduces do nothing."""
    with mock.patch.object(dist, "all_reduce", _nothing):
        try:
            sweep(asked)
        except ReproError as error:
            return str(error)
    return ""


def _nothing(*arguments: object, **options: object) -> list[object]:
    return []


def test_wrong_data_are_refused_by_name_size_and_rank(pool: RankPool) -> None:
    asked = replace(_ALL, collectives=("all_reduce",), layouts=("world",))
    # Rank r gives position + r, whose sum is 1, 3 at the two positions: rank 0 has 0, 1.
    assert pool.run(_refused, asked, ranks=2) == [
        f"all_reduce of 8 bytes: wrong result: {count} elements differ on rank {rank}, so its time "
        "is invalid; fix: check the communication library"
        for rank, count in enumerate((2, 1))
    ]


def _wrong_elements(collective: str, in_place: bool, broken: str) -> int:
    """A rank's task: how much of a result is wrong if a function of torch.distributed does
    nothing."""
    group = dist.group.WORLD
    assert group is not None
    operation = prepare(collective, 4000, in_place, group, torch.float32, torch.device("cpu"))
    with mock.patch.object(dist, broken, _nothing) if broken else nullcontext():
        return operation.wrong_elements()


_FUNCTIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "all_to_all_single",
    "send_recv": "batch_isend_irecv",
}


@pytest.mark.parametrize(("collective", "in_place"), _PLACES)
def test_the_check_sees_a_collective_that_does_nothing(
    pool: RankPool, collective: str, in_place: bool
) -> None:
    assert pool.run(_wrong_elements, collective, in_place, "", ranks=4) == [0] * 4
    wrong = pool.run(_wrong_elements, collective, in_place, _FUNCTIONS[collective], ranks=4)
    for rank, elements in enumerate(wrong):
        # The root of a broadcast has its data; only that of a reduction has a result.
        right = {"broadcast": rank == 0, "reduce": rank != 0}.get(collective, False)
        assert (elements == 0) == right


def _swapped() -> int:
    """A rank's task: what is wrong with an all-gather that takes ranks 0 and 3 for each other."""
    group = dist.group.WORLD
    assert group is not None

    def swap(result: torch.Tensor, given: torch.Tensor, **options: object) -> None:
        dist.all_gather(list(result.chunk(4)), given)
        first, last = result.chunk(4)[0].clone(), result.chunk(4)[3].clone()
        result.chunk(4)[0].copy_(last)
        result.chunk(4)[3].copy_(first)

    operation = prepare("all_gather", 4000, False, group, torch.float32, torch.device("cpu"))
    with mock.patch.object(dist, "all_gather_into_tensor", swap):
        return operation.wrong_elements()


def test_the_check_tells_ranks_apart(pool: RankPool) -> None:
    assert min(pool.run(_swapped, ranks=4)) > 0
