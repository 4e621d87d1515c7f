"""Microbenchmarks are of the operators, and of the sizes, that a trace of them shows."""

import itertools
from typing import Any

import pytest
import torch

from repro.catalog.studies.operator_benchmarks import (
    EMBEDDING_BAG,
    INDEX_ADD,
    LOOKUPS,
    in_cache_lines,
    moved_bytes,
)
from repro.catalog.studies.operators import read_operator_study
from repro.logs.operator_trace import HOST, read_operator_trace
from repro.observe.operator_trace import trace_of
from repro.train import operators
from repro.train.operators import operator_s, prepared

_GRIDS = read_operator_study().profile("ci").grids()


@pytest.mark.parametrize("operator", _GRIDS)
def test_a_trace_has_what_is_measured(operator: str) -> None:
    # Of sizes that differ, each at its place.
    asked = tuple(axis[min(1, len(axis) - 1)] for axis in _GRIDS[operator])
    sizes, _ = read_operator_study().operands(operator, asked)
    make, call = prepared(operator, sizes)
    operands = make()
    with torch.no_grad():
        found = read_operator_trace(trace_of(lambda: call(*operands)))
    known = {one.operator: one.sizes for one in found if one.operator != HOST and one.sizes}
    assert known[operator] == sizes


def test_what_autograd_records_and_runs_is_told_from_loops() -> None:
    weight, rows, sums = torch.ones(4, 3, requires_grad=True), torch.ones(6, 4), torch.ones(6, 4)

    def step() -> None:
        # It could be recorded, but asks for no gradient.
        sums.add_(rows)
        (sums @ weight).relu().sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            weight.mul_(0.5)

    step()
    found = {(one.operator, one.autograd) for one in read_operator_trace(trace_of(step))}
    # Of the first gradient's beginning the backward pass knows nothing either.
    assert {(name, True) for name in ("product nn", "relu/1", "sum/1", "product tn")} <= found
    assert {(name, False) for name in ("add_/2", "mul_/1", "fill_/1")} <= found
    assert not {("product nn", False), ("mul_/1", True)} & found


@pytest.mark.parametrize(
    "operator", [one for one in _GRIDS if one not in (*LOOKUPS, EMBEDDING_BAG)]
)
def test_what_an_operator_moves_are_its_operands_and_results(operator: str) -> None:
    sizes = tuple(axis[-1] for axis in _GRIDS[operator])
    make, call = prepared(operator, sizes)
    operands = make()
    with torch.no_grad():
        result = call(*operands)
    tensors = {id(one): one.nbytes for one in _tensors((operands, result))}
    # Masks, means and the like are small.
    assert moved_bytes(operator, [sizes]) == pytest.approx([sum(tensors.values())], rel=0.05)


def _tensors(value: object) -> list[torch.Tensor]:
    """In tuples, and tuples of tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in _tensors(part)] if isinstance(value, tuple) else []


def test_of_tables_what_is_looked_up_moves() -> None:
    # Of 7 rows, 3 wide, of a table of 1,000: read, and written; sums of bags of 7 on average.
    assert moved_bytes("embedding", [(7, 3, 1000)]) == 4 * 2 * 7 * 3
    assert moved_bytes("index_add_", [(7, 3, 1000)]) == 4 * 2 * 7 * 3
    assert moved_bytes(EMBEDDING_BAG, [(5, 7.0, 3, 1000)]) == 4 * (5 * 7 + 5) * 3
    # Gradients are as large as the table.
    assert moved_bytes("embedding_dense_backward", [(7, 3, 1000)]) == 4 * (7 + 1000) * 3


@pytest.mark.parametrize("width", [1, 12, 16, 20, 24, 40, 48, 80])
def test_rows_that_are_fetched_count_by_the_cache_lines_they_lie_in(width: int) -> None:
    # Of 64 bytes, of a table that begins with one.
    bytes_at = range(0, 4 * width * 160, 4 * width)
    lines = [(begin + 4 * width - 1) // 64 - begin // 64 + 1 for begin in bytes_at]
    rows = sum(lines) / len(lines)
    assert in_cache_lines(INDEX_ADD, [(7, width, 160)]).tolist() == [[7, pytest.approx(rows), 160]]
    assert in_cache_lines(EMBEDDING_BAG, [(5, 7.5, width, 160)]).tolist() == [
        [5, 7.5, pytest.approx(rows), 160]
    ]
    # Its result has rows one behind the other.
    assert in_cache_lines("index_select", [(7, width, 160)]).tolist() == [[7, width, 160]]


@pytest.mark.parametrize(("side", "sets"), [(10, 12), (160, 3), (640, 1)])
def test_time_is_of_a_call_whatever_takes_turns(
    side: int, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes on by two milliseconds whenever it is read: one round of all sets is enough.
    ticks = itertools.count(step=2e-3)
    monkeypatch.setattr("repro.train.operators.time.process_time", lambda: next(ticks))
    # As many sets of three square matrices as there is room for, twelve at most.
    working_set_bytes = 1e6
    assert sets == min(12, max(1, working_set_bytes // (3 * 4 * side**2)))
    found_s = operator_s("product nn", (side, side, side), working_set_bytes)
    assert found_s == pytest.approx(2e-3 / sets)


@pytest.mark.parametrize(("operator", "sets"), [("relu/1", 12), ("cat/1", 1), ("cat strided", 1)])
def test_what_is_concatenated_was_used_just_before(
    operator: str, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*asked: Any) -> Any:
        make, call = prepared(*asked)
        return lambda: made.append(asked) or make(), call

    monkeypatch.setattr(operators, "prepared", counted)
    operator_s(operator, (1280,), 1e9)
    assert len(made) == sets


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        ("index_select", (7, 4, 50)),
        ("embedding", (7, 4, 50)),
        (INDEX_ADD, (700, 4, 50)),
        (EMBEDDING_BAG, (5, 0.2, 4, 50)),
    ],
)
def test_rows_of_tables_are_used_again_behind_what_is_moved(
    operator: str, sizes: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, tables = [], []
    monkeypatch.setattr(operators, "_addition", lambda size: lambda: moved.append(size))
    anywhere = operators._table_anywhere

    def noted(rows: int, width: int) -> torch.Tensor:
        tables.append(anywhere(rows, width))
        return tables[-1]

    monkeypatch.setattr(operators, "_table_anywhere", noted)
    ticks = itertools.count(step=2e-3)
    monkeypatch.setattr("repro.train.operators.time.process_time", lambda: next(ticks))
    assert operator_s(operator, sizes, 3e6) == pytest.approx(2e-3)
    assert moved == [3e6] * len(tables)
    # Elsewhere each time, and as rows of a model's table lie in cache lines.
    assert len({one.data_ptr() for one in tables}) == len(tables) > 1
    assert all(one.shape == (50, 4) and one.data_ptr() % 64 == 0 for one in tables)
