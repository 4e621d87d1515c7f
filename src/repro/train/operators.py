"""Microbenchmarks of single operators: on one thread, and collectives among ranks.

What other work on the machine takes is left out where it can be: operators take the process's CPU
time, as emulated GPUs' passes do (`repro.train.pacing`). Collectives take time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from repro.catalog.operator_calls import BAGS, LOOKUPS, STRIDED_COPY, Sizes
from repro.collectives.operations import prepare

Operands = tuple[Any, ...]
# Of one measurement, and the most sets of operands that take turns.
_SHORTEST_S, _MOST_SETS = 1e-3, 64
# Rows of two-dimensional operands, and what lies together of a copy that is not.
_WIDTHS = {"sum": 160, "max": 1280, "masked_fill": 1280, "masked_fill_": 1280, "cat": 80}
_RUN, _RUNS = 40, 16
_ADAM: dict[str, Any] = {
    **{"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.01, "eps": 1e-8},
    **{"amsgrad": False, "maximize": False},
}
# These take a number too.
_WITH_NUMBER = ("add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "pow", "fill_")


@torch.no_grad()
def operator_s(operator: str, sizes: Sizes, working_set_bytes: float) -> float:
    """Seconds of CPU time that a call of an operator of `repro.catalog.operator_calls` takes.

    Operands and results take turns in `working_set_bytes`, as far as `_MOST_SETS` are enough.
    """
    make, call = prepared(operator, sizes)
    sets = [make(), make()]
    shared, result = set(map(id, sets[1])), call(*sets[0])
    # Tables are the same in all sets; in place, a result is an operand.
    own = [one for one in sets[0] if id(one) not in shared]
    made = [] if any(result is one for one in sets[0]) else [result]
    fitting = working_set_bytes // max(1, _nbytes([*own, *made]))
    sets += [make() for _ in range(min(_MOST_SETS, int(fitting)) - len(sets))]
    # What is kept of them is not where the next result goes.
    results = deque((call(*operands) for operands in sets), maxlen=len(sets))
    calls, taken_s = 0, 0.0
    while taken_s < _SHORTEST_S:
        start = time.process_time()
        for operands in sets:
            results.append(call(*operands))
        taken_s += time.process_time() - start
        calls += len(sets)
    return taken_s / calls


def _nbytes(values: Iterable[object]) -> int:
    """Of tensors, also of those in tuples."""
    return sum(
        one.nbytes if isinstance(one, torch.Tensor) else _nbytes(one)
        for one in values
        if isinstance(one, torch.Tensor | tuple)
    )


def collective_s(collective: str, size_bytes: int, calls: int) -> list[float]:
    """Seconds of each of some calls between all ranks on this one, each behind a barrier."""
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
    times = []
    for _ in range(calls):
        dist.barrier()
        start = time.monotonic()
        operation.call()
        times.append(time.monotonic() - start)
    return times


Made = tuple[Callable[[], Operands], Callable[..., object]]


def prepared(operator: str, sizes: Sequence[Any]) -> Made:
    """What makes a set of operands, and the call."""
    if operator == STRIDED_COPY:
        return _strided_copy(*sizes)
    if operator.rpartition(" ")[0].endswith("product"):
        return _product(operator.rpartition(" ")[2], *sizes)
    if operator in LOOKUPS:
        return _lookup(operator, *sizes)
    if operator == BAGS:
        return _bags(*sizes)
    if "/" in operator:
        name, _, operands = operator.partition("/")
        return _by_elements(name, int(operands), *sizes)
    return _by_rows(operator, *sizes)


def _ones(*shape: int) -> torch.Tensor:
    """Numbers that stay such whatever is done with them over and over."""
    return torch.full(shape, 1.0)


def _matrix(layout: str, *shape: int) -> torch.Tensor:
    *batch, rows, columns = shape
    if layout == "t":
        return _ones(*batch, columns, rows).transpose(-1, -2)
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
    }
    norm, moments = 2 * (_ones(width),), 2 * (_ones(rows, 1),)
    operands, call = calls[operator]
    return lambda: tuple(_ones(rows, width) for _ in range(operands)), call


def _lookup(operator: str, lookups: int, width: int, rows: int) -> Made:
    def indices() -> torch.Tensor:
        return torch.randint(rows, (lookups,))

    if operator == "embedding_dense_backward":
        backward = torch.ops.aten.embedding_dense_backward
        return (
            lambda: (_ones(lookups, width), indices()),
            lambda gradients, at: backward(gradients, at, rows, -1, False),
        )
    table = _ones(rows, width)
    if operator == "index_add_":
        return (
            lambda: (table, indices(), _ones(lookups, width)),
            lambda whole, at, more: whole.index_add_(0, at, more, alpha=-1e-6),
        )
    if operator == "embedding":
        return lambda: (table, indices()), torch.embedding
    return lambda: (table, indices()), lambda whole, at: torch.index_select(whole, 0, at)


def _bags(bags: int, pooling: float, width: int, rows: int) -> Made:
    lookups = round(bags * pooling)
    table, offsets = _ones(rows, width), torch.arange(bags) * lookups // bags
    return (
        lambda: (table, torch.randint(rows, (lookups,))),
        lambda whole, at: torch.nn.functional.embedding_bag(at, whole, offsets, mode="sum"),
    )


def _strided_copy(elements: int) -> Made:
    run = min(elements, _RUN)
    runs = min(elements // run, _RUNS)
    shape = (runs, elements // (run * runs), run)
    return (
        lambda: (_ones(*shape), _ones(shape[1], runs, run).transpose(0, 1)),
        torch.Tensor.copy_,
    )


def _by_elements(name: str, operands: int, elements: int) -> Made:
    width = min(elements, _WIDTHS.get(name, elements))
    shape = (elements // width, width) if name in _WIDTHS else (elements,)
    mask = torch.arange(width) % 2 == 0
    special: dict[str, Callable[..., object]] = {
        "sum": lambda x: torch.sum(x, 0),
        "max": lambda x: torch.max(x, -1),
        "linalg_vector_norm": torch.linalg.vector_norm,
        "masked_fill": lambda x: x.masked_fill(mask, -1.0),
        "masked_fill_": lambda x: x.masked_fill_(mask, -1.0),
        "cat": lambda x: torch.cat(x.tensor_split(2, -1), -1),
        "threshold_backward": lambda g, x: torch.ops.aten.threshold_backward(g, x, 0),
        "gelu": torch.nn.functional.gelu,
        "gelu_backward": torch.ops.aten.gelu_backward,
        "tanh_backward": torch.ops.aten.tanh_backward,
    }
    if name == "_fused_adamw_":
        return lambda: (*(_ones(elements) for _ in range(4)), _ones(1)), _step
    call = special.get(name) or getattr(torch, name, None) or getattr(torch.Tensor, name)
    if operands == 1 and name in _WITH_NUMBER:
        return lambda: (_ones(*shape),), lambda x: call(x, 1.0)
    return lambda: tuple(_ones(*shape) for _ in range(operands)), call


def _step(*state: torch.Tensor) -> None:
    """Adam's step of one parameter: itself, its gradient, two moments, the number of the step."""
    weight, gradient, first, second, number = ([one] for one in state)
    torch._fused_adamw_(weight, gradient, first, second, [], number, **_ADAM)
