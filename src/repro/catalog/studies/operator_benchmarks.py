"""Operators of torch by the microbenchmark that stands for each, with the sizes that matter.

Names are those of torch's profiler without `aten::` or `c10d::`. What a size is:

- `product`, `batched product`: (batch,) m, n, k, apart by how operands lie: `n` as they are, `t`
  transposed, in capitals where a row is followed by that of the next of the batch, as heads are;
- `_softmax`, `native_layer_norm` and the like: rows, width; so are sums of all rows, and additions
  of one row to all;
- lookups: how many, width, rows of the table; of bags first their number, then rows of one; of
  rows that are changed also the bytes gone through since they were looked up, which no call shows;
- all others: elements of the largest tensor, apart by how many operands have as many.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Sizes = tuple[float, ...]

PRODUCTS = ("nn", "nt", "tn")
BATCHED_PRODUCTS = (*PRODUCTS, "NT", "Tn", "tN", "nN")
SUM_OF_ROWS, ADDED_ROW = "sum rows", "add row"
BY_ROWS = (
    "_softmax",
    "_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    SUM_OF_ROWS,
    ADDED_ROW,
)
# No trace has these: a small operator of a module, and one by itself, as loops have them, by the
# bytes that the operator before it moved; and a view, which computes nothing.
LAUNCH, LAUNCH_IN_LOOP, LAUNCHED_VIEW = "launch", "launch in a loop", "launch of a view"
LAUNCHES = (LAUNCH, LAUNCH_IN_LOOP)
CHANGES, BAGS = "index_add_", "_embedding_bag"
LOOKUPS = ("index_select", CHANGES, "embedding", "embedding_dense_backward")
# Where the width is among the sizes of those that fetch rows and write no others; bytes that memory
# hands over at once.
_FETCHED_AT = {CHANGES: 1, BAGS: 2}
_LINE_BYTES = 64
# Axes of which caches hold a share: rows of tables, and bytes that were moved since.
_IN_CACHES = {"index_select": (2,), "embedding": (2,), BAGS: (3,), CHANGES: (2, 3), LAUNCH: (0,)}
# All numbers are in fp32.
_ELEMENT_BYTES = 4
# What the profiler calls them.
_PRECISIONS = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
# By numbers of operands that have all elements.
BY_ELEMENTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("add", "add_", "sub", "mul", "mul_"), (1, 2)),
    **dict.fromkeys(("tanh_backward", "gelu_backward", "threshold_backward"), (2,)),
    **dict.fromkeys(("sub_", "rsub", "div", "div_", "neg", "pow", "sqrt"), (1,)),
    **dict.fromkeys(("exp", "log", "tanh", "erf", "gelu", "relu", "sigmoid"), (1,)),
    **dict.fromkeys(("sum", "max", "linalg_vector_norm"), (1,)),
    **dict.fromkeys(("fill_", "zero_", "masked_fill_", "masked_fill", "cat"), (1,)),
    "copy_": (2,),
    "_fused_adamw_": (1,),
}
# Of tensors whose rows do not follow each other.
STRIDED = ("copy_ strided", "cat strided")
CONCATENATIONS = ("cat/1", "cat strided")
COLLECTIVES = {"allreduce_": "all_reduce", "alltoall_base_": "all_to_all"}
# Others that do the same work.
_ALIASES = {
    "_fused_adam_": "_fused_adamw_",
    "_embedding_bag_forward_only": BAGS,
    "norm": "linalg_vector_norm",
    "amax": "max",
}
_PRODUCTS_AT = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
# Tensors of all elements beside the operands of operators by elements: results, unless they are in
# place or small, and other states of an optimizer.
_BESIDE = {**dict.fromkeys(("sum", "max", "linalg_vector_norm"), 0), "_fused_adamw_": 3}


def benchmark_of(name: str, args: Mapping[str, Any]) -> tuple[str, Sizes] | None:
    """The microbenchmark of a call, and its sizes; None where none stands for it.

    Parameters
    ----------
    name
        As the profiler has it, such as `aten::mm`.
    args
        What the profiler notes of the call with `record_shapes`.
    """
    _, _, short = name.partition("::")
    short = _ALIASES.get(short, short)
    dims, strides = args.get("Input Dims", []), args.get("Input Strides", [])
    if short in _PRODUCTS_AT:
        return _product(dims, strides, _PRODUCTS_AT[short])
    short = _with_rows(short, dims, args.get("Concrete Inputs", []))
    if short in BY_ROWS:
        width = int(dims[0][-1])
        return short, (_elements(dims[0]) // width, width)
    if short in LOOKUPS:
        return short, _lookup(short, dims, args.get("Concrete Inputs", []))
    if short == BAGS:
        (rows, width), lookups, bags = dims[0], dims[1][0], dims[2][0]
        return short, (bags, lookups / bags, width, rows)
    if short in BY_ELEMENTS:
        return _by_elements(short, dims, strides)
    return None


def precisions_of(operator: str, args: Mapping[str, Any]) -> tuple[str, ...]:
    """Precisions of a call's largest operands of floating numbers: of element-wise work and copies
    of each, of others the first one's; none where the profiler does not say them, as of lists of
    tensors."""
    given = [
        (_elements(shape), _PRECISIONS[kind])
        for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False)
        if kind in _PRECISIONS
    ]
    largest = max((count for count, _ in given), default=0)
    found = tuple(kind for count, kind in given if count == largest)
    return found if "/" in operator or operator in STRIDED else found[:1]


def in_lines(operator: str, sizes: Any) -> Any:
    """Sizes of calls (call, axis), where rows are fetched with the cache lines that one lies in for
    its width: on average, as they lie one behind the other, from the beginning of a line on. What
    writes as much beside them, as `index_select`, goes by widths."""
    sizes = np.array(sizes, dtype=float)
    if (axis := _FETCHED_AT.get(operator)) is not None:
        row_bytes = _ELEMENT_BYTES * sizes[:, axis].astype(int)
        beginnings = np.gcd(row_bytes, _LINE_BYTES)
        sizes[:, axis] = (row_bytes + _LINE_BYTES - beginnings) / _LINE_BYTES
    return sizes


def axes_in_caches(operator: str) -> tuple[int, ...]:
    """Axes of an operator's sizes, in some precision or none, and of any launch's, of which caches
    hold a share."""
    return _IN_CACHES.get(operator.partition(" ")[0], ())


def moved_bytes(operator: str, sizes: Any) -> Any:
    """Bytes of all operands and results of an operator.

    Parameters
    ----------
    sizes
        Of calls (call, axis).

    Returns
    -------
    Array
        Of each call.
    """
    return _ELEMENT_BYTES * sum(_operands_and_results(operator, sizes))


def looked_up_bytes(operator: str, sizes: Any) -> Any:
    """Bytes of the different rows of each call (call, axis) that sums rows up or looks them up,
    drawn evenly: n of r rows are r (1 - (1 - 1/r)^n)."""
    columns = np.asarray(sizes, dtype=float).T
    if operator == BAGS:
        bags, pooling, width, rows = columns
        drawn = bags * pooling
    else:
        drawn, width, rows, *_ = columns
    return _ELEMENT_BYTES * width * rows * (1 - (1 - 1 / rows) ** drawn)


def gone_through_bytes(operator: str, sizes: Any) -> Any:
    """Bytes that each call (call, axis) is the latest to use of all: its results, and the rows that
    it sums up or changes, each once."""
    if operator == CHANGES:
        return looked_up_bytes(operator, sizes)
    _, results = _operands_and_results(operator, sizes)
    rows = looked_up_bytes(operator, sizes) if operator == BAGS else 0.0
    return _ELEMENT_BYTES * results + rows


def _operands_and_results(operator: str, sizes: Any) -> tuple[Any, Any]:
    """Elements of each call's operands, and of results that are none of these; of rows that are
    changed what is added to them, and these."""
    columns = np.asarray(sizes, dtype=float).T
    name, _, count = operator.partition("/")
    if operator.rpartition(" ")[0].endswith("product"):
        *batch, m, n, k = columns
        return math.prod(batch) * (m * k + k * n), math.prod(batch) * m * n
    if operator in BY_ROWS:
        elements = columns[0] * columns[1]
        results = columns[1] if operator == SUM_OF_ROWS else elements
        return (2 if "backward" in operator else 1) * elements, results
    if operator == BAGS:
        bags, pooling, width, _ = columns
        return bags * pooling * width, bags * width
    if operator == "embedding_dense_backward":
        lookups, width, rows = columns
        return lookups * width, rows * width
    if operator in LOOKUPS:
        elements = columns[0] * columns[1]
        return elements, elements
    if operator in STRIDED:
        return columns[0], columns[0]
    return int(count) * columns[0], _BESIDE.get(name, not name.endswith("_")) * columns[0]


def collective_bytes(args: Mapping[str, Any]) -> int:
    """Bytes of the larger of what a rank hands over and gets in a call of a collective."""
    return _ELEMENT_BYTES * max(map(_elements, args.get("Input Dims", [[]])))


def _product(dims: Sequence[Any], strides: Sequence[Any], first: int) -> tuple[str, Sizes] | None:
    (*batch, m, k), (*_, n) = dims[first : first + 2]
    layout = "".join(map(_layout, strides[first : first + 2]))
    name = "batched product" if batch else "product"
    return f"{name} {layout or 'nn'}", (*batch, m, n, k)


def _layout(strides: Sequence[int]) -> str:
    *batch, down, across = strides
    letter = "t" if down == 1 and across > 1 else "n"
    return letter.upper() if batch and batch[0] < max(down, across) else letter


def _with_rows(name: str, dims: Sequence[Any], given: Sequence[str]) -> str:
    """Sums of all rows and additions of one have names of their own: biases and their gradients."""
    if len(dims) < 2 or len(dims[0]) < 2:
        return name
    if name == "sum" and given[1:2] == [str(list(range(len(dims[0]) - 1)))]:
        return SUM_OF_ROWS
    return ADDED_ROW if name == "add" and dims[1] == dims[0][-1:] else name


def _lookup(name: str, dims: Sequence[Any], given: Sequence[str]) -> Sizes:
    if name == "embedding_dense_backward":
        return _elements(dims[1]), int(dims[0][-1]), int(given[2])
    rows, width = dims[0][0], _elements(dims[0][1:])
    indices = dims[1] if name == "embedding" else dims[2]
    return _elements(indices), width, rows


def _by_elements(name: str, dims: Sequence[Any], strides: Sequence[Any]) -> tuple[str, Sizes]:
    counts = [_elements(one) for one in dims]
    largest = max(counts, default=1)
    if (strided := f"{name} strided") in STRIDED and not all(
        _is_dense(shape, stride)
        for count, shape, stride in zip(counts, dims, strides, strict=False)
        if count == largest
    ):
        return strided, (largest,)
    measured = BY_ELEMENTS[name]
    operands = min(max(counts.count(largest), measured[0]), measured[-1])
    return f"{name}/{operands}", (largest,)


def _elements(dims: Any) -> int:
    """Of a tensor, or of a list of tensors all together."""
    if dims and isinstance(dims[0], list):
        return sum(map(_elements, dims))
    return math.prod(dims)


def _is_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether its elements are one behind the other; of a list of tensors, those of each."""
    if shape and isinstance(shape[0], list):
        return all(map(_is_dense, shape, strides))
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
