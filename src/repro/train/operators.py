"""Calls of single operators with operands of given sizes."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import torch

from repro.catalog.studies.operator_benchmarks import (
    ADDED_ROW,
    EMBEDDING_BAG,
    INDEX_ADD,
    LOOKUPS,
    STRIDED,
    SUM_OF_ROWS,
    Sizes,
)
from repro.train.timed import cpu_s

Operands = tuple[Any, ...]
# Most tables through which calls rotate.
_MOST_TABLES = 48
# Row widths of two-dimensional operands; all others have one dimension.
_WIDTHS = {
    **{"sum": 1280, "max": 1280, "sub_": 1280, "div_": 1280},
    **{"masked_fill": 1280, "masked_fill_": 1280},
}
# Rows and columns of a causal mask; tensors of an optimizer's step; numbers in the pools that
# operands and tables are taken from.
_MASK, _TENSORS, _DRAWN = (40, 32), 16, 1 << 25
# Operators on positive numbers.
_POSITIVE = ("log", "sqrt", "pow", "div")
_RUN, _RUNS, _ROW = 40, 16, 80
_ADAM: dict[str, Any] = {
    **{"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.01, "eps": 1e-8},
    **{"amsgrad": False, "maximize": False},
}
# Operators with a number as second operand.
_WITH_NUMBER = ("add", "add_", "sub", "rsub", "mul", "mul_", "div", "pow", "fill_")


@torch.no_grad()
def operator_s(operator: str, sizes: Sizes) -> float:
    """Return the CPU time of a call of an operator of `operator_benchmarks`, in seconds.

    Operands stay the same, so caches hold what fits.
    """
    make, call = prepared(operator, sizes)
    return cpu_s(call, *make())


Made = tuple[Callable[[], Operands], Callable[..., object]]


def prepared(operator: str, sizes: Sequence[Any], tables_bytes: float = 0.0) -> Made:
    """Return the function that makes operands, and the call; tables rotate in so many bytes."""
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
    """Return ones, which stay normal numbers under repeated operations."""
    return torch.full(shape, 1.0)


@cache
def _drawn(precision: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(_DRAWN, dtype=precision, device=device)


def _normal(*shape: int) -> torch.Tensor:
    """Return numbers like activations, on which branches and series of operators depend."""
    if (count := math.prod(shape)) > _DRAWN:
        return torch.randn(shape)
    drawn = _drawn(torch.get_default_dtype(), torch.get_default_device())
    return drawn[:count].view(shape).clone()


def _matrix(layout: str, *shape: int) -> torch.Tensor:
    *batch, rows, columns = shape
    if layout in "tT":
        return _matrix("n" if layout == "t" else "N", *batch, columns, rows).transpose(-1, -2)
    if layout == "N":
        # Queries, keys and values are adjacent in memory.
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
    """Return an endless rotation of tables: as many as fit into so many bytes, at least one."""
    count = min(max(int(tables_bytes // (4 * width * rows)), 1), _MOST_TABLES)
    elements = count * rows * width
    if elements > _DRAWN:
        return cycle(_ones(count, rows, width))
    # Filling memory takes longer than the lookups.
    ones = _ones_to_look_up(torch.get_default_dtype(), torch.get_default_device())
    return cycle(ones[:elements].view(count, rows, width))


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
    """Return both halves of a tensor's rows."""
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
        # The second operand is one number per row.
        return lambda: (_ones(*shape), _ones(*shape[:-1], 1)), getattr(torch.Tensor, name)
    call = special.get(name) or getattr(torch, name, None) or getattr(torch.Tensor, name)
    if name == "cat":
        return lambda: (tuple(half.contiguous() for half in _halves(elements)),), _side_by_side
    if operands == 1 and name in _WITH_NUMBER:
        return lambda: (_ones(*shape),), lambda x: call(x, 1.0)
    made = _ones if name.endswith("_") or name in _POSITIVE else _normal
    return lambda: tuple(made(*shape) for _ in range(operands)), call


def _step(weights: Any, gradients: Any, first: Any, second: Any, numbers: Any) -> None:
    """Run Adam's step on parameters with their gradients, two moments and numbers of steps."""
    torch._fused_adamw_(weights, gradients, first, second, [], numbers, **_ADAM)
