"""Microbenchmarks of single operators: on one thread, and collectives among ranks.

What other work on the machine takes is left out where it can be: operators take the process's CPU
time, as emulated GPUs' passes do (`repro.train.pacing`). Collectives take time.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import cycle, product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from repro.catalog.studies.operator_benchmarks import (
    ADDED_ROW,
    CONCATENATIONS,
    EMBEDDING_BAG,
    INDEX_ADD,
    LAUNCH,
    LAUNCH_IN_LOOP,
    LOOKUPS,
    STRIDED,
    SUM_OF_ROWS,
    Sizes,
)
from repro.collectives.operations import prepare

Operands = tuple[Any, ...]
# Their first two operands are the table and what is looked up; a third is added to it.
_IN_TABLES = ("index_select", "embedding", EMBEDDING_BAG, INDEX_ADD)
# Of one measurement, and the most sets of operands, and tables, that take turns.
_SHORTEST_S, _MOST_SETS, _MOST_TABLES = 1e-3, 12, 48
# Lookups of one measurement, the first of which counts for nothing; rows of a small table, and of
# lookups in it; elements of a cache line.
_LOOKUPS, _FEW, _LINE = 4, 512, 16
# Launches of one measurement, and the width of what is launched.
_LAUNCHES, _NARROW = 200, 16
# Rows of two-dimensional operands, and what lies together of a copy that is not.
_WIDTHS = {
    **{"sum": 1280, "max": 1280, "sub_": 1280, "div_": 1280},
    **{"masked_fill": 1280, "masked_fill_": 1280},
}
# A causal mask of so many rows and columns; tensors of an optimizer's step; numbers that are drawn
# from or looked up.
_MASK, _TENSORS, _DRAWN = (40, 32), 16, 1 << 25
# They take positive numbers.
_POSITIVE = ("log", "sqrt", "pow", "div")
_RUN, _RUNS, _ROW = 40, 16, 80
_ADAM: dict[str, Any] = {
    **{"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.01, "eps": 1e-8},
    **{"amsgrad": False, "maximize": False},
}
# These take a number too.
_WITH_NUMBER = ("add", "add_", "sub", "rsub", "mul", "mul_", "div", "pow", "fill_")


@torch.no_grad()
def operator_s(operator: str, sizes: Sizes, turns_bytes: float) -> float:
    """Seconds of CPU time that a call of an operator of `operator_benchmarks` takes.

    Operands and results take turns in so many bytes, as far as `_MOST_SETS` are enough; what is
    concatenated was used just before, as an iteration makes it. Rows of tables were used before an
    addition that moves so many.
    """
    if operator in _IN_TABLES:
        return _again_s(operator, sizes, turns_bytes)
    make, call = prepared(operator, sizes)
    sets = [make()]
    result = call(*sets[0])
    # In place, a result is an operand.
    made = [] if any(result is one for one in sets[0]) else [result]
    set_bytes = nbytes([*sets[0], *made])
    others = min(_MOST_SETS, int(turns_bytes // max(1, set_bytes))) - 1
    sets += others * sets if operator in CONCATENATIONS else [make() for _ in range(others)]
    # What is kept of them is not where the next result goes.
    results = deque([result, *(call(*operands) for operands in sets[1:])], maxlen=len(sets))
    calls, taken_s = 0, 0.0
    while taken_s < _SHORTEST_S:
        start = time.process_time()
        for operands in sets:
            results.append(call(*operands))
        taken_s += time.process_time() - start
        calls += len(sets)
    return taken_s / calls


def _again_s(operator: str, sizes: Sizes, moved_bytes: float) -> float:
    """Seconds of a call on rows that were used once before an addition that moves so many bytes,
    other rows of another table each time, and behind a call on a small table, as tables of an
    iteration follow each other.

    Calls that took turns would come by the same rows, and the same pages of their tables, sooner
    than an iteration does.
    """
    make, call = prepared(operator, sizes)
    *first, width, rows = (int(size) for size in sizes)
    few = [min(first[0], _FEW), *(1.0 for _ in first[1:]), width, _FEW]
    make_few, call_few = prepared(operator, few)
    small, move, times = _ones(_FEW, width), _addition(moved_bytes), []
    for _ in range(_LOOKUPS):
        _, at, *added = make()
        table = _table_anywhere(rows, width)
        torch.index_select(table, 0, at)
        move()
        call_few(small, *make_few()[1:])
        for numbers in added:
            numbers.fill_(1.0)
        start = _begun_s()
        call(table, at, *added)
        times.append(time.process_time() - start)
    return float(np.median(times[1:]))


def _begun_s() -> float:
    """The process's CPU time, where a single call is timed. It is read twice: what the clock itself
    needs is not in caches behind many bytes."""
    time.process_time()
    return time.process_time()


def _table_anywhere(rows: int, width: int) -> torch.Tensor:
    """A part of a piece of memory that caches do not hold, from the beginning of a line on."""
    elements = rows * width
    start = int(torch.randint(max(_DRAWN - elements, 0) + 1, ())) // _LINE * _LINE
    return _ones_from(start, elements).view(rows, width)


def launch_s(launch: str, moved_bytes: float) -> float:
    """Seconds of CPU time that a small operator, one of `LAUNCHES`, takes behind an addition that
    moves so many bytes, which evict what Python and torch need for it from the caches."""
    move, narrow = _addition(moved_bytes), _ones(1, _NARROW)
    module, first = torch.nn.LayerNorm(_NARROW), torch.zeros(1, dtype=torch.long)
    calls: dict[str, Callable[[], object]] = {
        LAUNCH: lambda: module(narrow),
        LAUNCH_IN_LOOP: lambda: torch.index_select(narrow, 0, first),
    }
    call, taken_s = calls[launch], 0.0
    # The first one prepares what others find.
    call()
    for _ in range(_LAUNCHES):
        move()
        start = _begun_s()
        call()
        taken_s += time.process_time() - start
    return taken_s / _LAUNCHES


def view_s() -> float:
    """Seconds of CPU time that a view takes, of those that an iteration has most."""
    tensor = _ones(_NARROW, _NARROW)
    views: tuple[Callable[[], object], ...] = (
        *(tensor.t, tensor.flatten),
        *(lambda: tensor[0], lambda: tensor[:, :1]),
    )
    start = time.process_time()
    for _, view in product(range(_LAUNCHES), views):
        view()
    return (time.process_time() - start) / (_LAUNCHES * len(views))


def _addition(moved_bytes: float) -> Callable[[], object]:
    """An addition that moves so many bytes, two operands and a result."""
    one, other, result = (_ones(math.ceil(moved_bytes / 12)) for _ in range(3))
    return lambda: torch.add(one, other, out=result)


def nbytes(values: Iterable[object]) -> int:
    """Of tensors, also of those in tuples."""
    return sum(
        one.nbytes if isinstance(one, torch.Tensor) else nbytes(one)
        for one in values
        if isinstance(one, torch.Tensor | tuple)
    )


def collective_s(collective: str, size_bytes: int, calls: int, states_bytes: float) -> list[float]:
    """Seconds of each of some calls between all ranks on this one, each behind an addition that
    moves `states_bytes`, from which ranks come as they do in an iteration: apart, every second one
    later, in turns, with what they hand over just made."""
    assert dist.group.WORLD is not None
    operation = prepare(
        collective,
        size_bytes,
        collective == "all_reduce",
        dist.group.WORLD,
        torch.float32,
        torch.device("cpu"),
    )
    operation.call()
    times, move = [], _addition(states_bytes)
    for number in range(calls):
        dist.barrier()
        for _ in range(1 + (dist.get_rank() + number) % 2):
            move()
        operation.input.mul_(1.0)
        start = time.monotonic()
        operation.call()
        times.append(time.monotonic() - start)
    return times


Made = tuple[Callable[[], Operands], Callable[..., object]]


def prepared(operator: str, sizes: Sequence[Any], tables_bytes: float = 0.0) -> Made:
    """What makes a set of operands, and the call; tables take turns in so many bytes."""
    if operator in STRIDED:
        return _strided(operator, *sizes)
    if operator.rpartition(" ")[0].endswith("product"):
        return _product(operator.rpartition(" ")[2], *sizes)
    if operator in LOOKUPS:
        return _lookup(tables_bytes, operator, *sizes)
    if operator == EMBEDDING_BAG:
        return _bags(tables_bytes, *sizes)
    if "/" in operator:
        name, _, operands = operator.partition("/")
        return _by_elements(name, int(operands), *sizes)
    return _by_rows(operator, *sizes)


def _ones(*shape: int) -> torch.Tensor:
    """Numbers that stay such whatever is done with them over and over."""
    return torch.full(shape, 1.0)


@cache
def _drawn(precision: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(_DRAWN, dtype=precision, device=device)


def _normal(*shape: int) -> torch.Tensor:
    """Numbers as activations are: branches and series depend on them."""
    if (count := math.prod(shape)) > _DRAWN:
        return torch.randn(shape)
    drawn = _drawn(torch.get_default_dtype(), torch.get_default_device())
    return drawn[:count].view(shape).clone()


def _matrix(layout: str, *shape: int) -> torch.Tensor:
    *batch, rows, columns = shape
    if layout in "tT":
        return _matrix("n" if layout == "t" else "N", *batch, columns, rows).transpose(-1, -2)
    if layout == "N":
        # Queries, keys and values lie side by side.
        return _ones(rows, *batch, 3 * columns)[..., :columns].transpose(0, 1)
    return _ones(*shape)


def _product(layouts: str, *sizes: int) -> Made:
    *batch, m, n, k = sizes
    return (
        lambda: (_matrix(layouts[0], *batch, m, k), _matrix(layouts[1], *batch, k, n)),
        torch.bmm if batch else torch.mm,
    )


def _by_rows(operator: str, rows: int, width: int) -> Made:
    aten = torch.ops.aten
    calls: dict[str, tuple[int, Callable[..., object]]] = {
        "_softmax": (1, lambda x: torch.softmax(x, -1)),
        "_softmax_backward_data": (
            2,
            lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32),
        ),
        "native_layer_norm": (1, lambda x: torch.native_layer_norm(x, [width], *norm, 1e-5)),
        "native_layer_norm_backward": (
            2,
            lambda g, x: aten.native_layer_norm_backward(
                g, x, [width], *moments, *norm, [True, True, True]
            ),
        ),
        SUM_OF_ROWS: (1, lambda x: torch.sum(x, 0)),
        ADDED_ROW: (1, lambda x: torch.add(x, norm[0])),
    }
    # Moments are in fp32, whatever the rows are in.
    norm, moments = 2 * (_ones(width),), 2 * (_ones(rows, 1).float(),)
    operands, call = calls[operator]
    return lambda: tuple(_normal(rows, width) for _ in range(operands)), call


@cache
def _ones_to_look_up(precision: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones(_DRAWN, dtype=precision, device=device)


def _tables(tables_bytes: float, width: int, rows: int) -> Iterator[torch.Tensor]:
    """Tables, over and over: as many of this size as there are bytes for, one at least."""
    count = min(max(int(tables_bytes // (4 * width * rows)), 1), _MOST_TABLES)
    return cycle(_ones_from(0, count * rows * width).view(count, rows, width))


def _ones_from(start: int, elements: int) -> torch.Tensor:
    """Of one piece of memory, where it is enough: to fill it takes longer than to look things
    up."""
    if elements > _DRAWN:
        return _ones(elements)
    ones = _ones_to_look_up(torch.get_default_dtype(), torch.get_default_device())
    return ones[start : start + elements]


def _lookup(tables_bytes: float, operator: str, lookups: int, width: int, rows: int) -> Made:
    def indices() -> torch.Tensor:
        return torch.randint(rows, (lookups,))

    if operator == "embedding_dense_backward":
        backward = torch.ops.aten.embedding_dense_backward
        return (
            lambda: (_ones(lookups, width), indices()),
            lambda gradients, at: backward(gradients, at, rows, -1, False),
        )
    tables = _tables(tables_bytes, width, rows)
    if operator == INDEX_ADD:
        added = _ones(lookups, width)
        return (
            lambda: (next(tables), indices(), added),
            lambda whole, at, more: whole.index_add_(0, at, more, alpha=-1e-6),
        )
    if operator == "embedding":
        return lambda: (next(tables), indices()), torch.embedding
    return lambda: (next(tables), indices()), lambda whole, at: torch.index_select(whole, 0, at)


def _bags(tables_bytes: float, bags: int, pooling: float, width: int, rows: int) -> Made:
    lookups, tables = round(bags * pooling), _tables(tables_bytes, width, rows)
    offsets = torch.arange(bags) * lookups // bags
    return (
        lambda: (next(tables), torch.randint(rows, (lookups,))),
        lambda whole, at: torch.nn.functional.embedding_bag(at, whole, offsets, mode="sum"),
    )


def _strided(operator: str, elements: int) -> Made:
    if operator == "cat strided":
        return lambda: (_halves(elements),), _side_by_side
    run = min(elements, _RUN)
    runs = min(elements // run, _RUNS)
    shape = (runs, elements // (run * runs), run)
    return (
        lambda: (_ones(*shape), _ones(shape[1], runs, run).transpose(0, 1)),
        torch.Tensor.copy_,
    )


def _halves(elements: int) -> tuple[torch.Tensor, ...]:
    """Of the rows of a tensor."""
    width = min(elements, _ROW)
    return _normal(elements // width, width).tensor_split(2, -1)


def _side_by_side(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat(parts, -1)


def _by_elements(name: str, operands: int, elements: int) -> Made:
    width = min(elements, _WIDTHS.get(name, elements))
    shape = (elements // width, width) if name in _WIDTHS else (elements,)
    mask = torch.ones(_MASK, dtype=torch.bool).triu(1).flatten()[:width]
    special: dict[str, Callable[..., object]] = {
        "sum": lambda x: torch.sum(x, -1),
        "max": lambda x: torch.max(x, -1),
        "linalg_vector_norm": torch.linalg.vector_norm,
        "masked_fill": lambda x: x.masked_fill(mask, -1.0),
        "masked_fill_": lambda x: x.masked_fill_(mask, -1.0),
        "threshold_backward": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0),
        "gelu": torch.nn.functional.gelu,
        "gelu_backward": torch.ops.aten.gelu_backward,
        "tanh_backward": torch.ops.aten.tanh_backward,
    }
    if name == "_fused_adamw_":
        states = [elements] * 4 + [_TENSORS]
        return lambda: tuple(_ones(one).tensor_split(_TENSORS) for one in states), _step
    if name in ("sub_", "div_"):
        # By a number for each row.
        return lambda: (_ones(*shape), _ones(*shape[:-1], 1)), getattr(torch.Tensor, name)
    call = special.get(name) or getattr(torch, name, None) or getattr(torch.Tensor, name)
    if name == "cat":
        return lambda: (tuple(half.contiguous() for half in _halves(elements)),), _side_by_side
    if operands == 1 and name in _WITH_NUMBER:
        return lambda: (_ones(*shape),), lambda x: call(x, 1.0)
    made = _ones if name.endswith("_") or name in _POSITIVE else _normal
    return lambda: tuple(made(*shape) for _ in range(operands)), call


def _step(weights: Any, gradients: Any, first: Any, second: Any, numbers: Any) -> None:
    """Adam's step of some parameters: themselves, their gradients, two moments, their steps."""
    torch._fused_adamw_(weights, gradients, first, second, [], numbers, **_ADAM)
