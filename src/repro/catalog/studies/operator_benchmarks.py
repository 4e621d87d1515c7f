"""Microbenchmarks of PyTorch operators, and the sizes that determine their time.

Names are those of torch's profiler without `aten::` or `c10d::`. The axes of sizes are:

- `product`, `batched product` (matmuls): (batch,) m, n, k. A suffix states how operands lie: `n` as
  they are, `t` transposed; in capitals if the same row of the next batch follows, as with heads.
- `_softmax`, `native_layer_norm` and the like, sums of all rows, and additions of one row to all:
  rows, width.
- lookups: number of rows, width, rows of the table. Bags: number of bags, rows per bag, width, rows
  of the table. `index_add_` adds the bytes used since its rows were looked up, which no call shows.
- all others: elements of the largest tensor; a suffix counts the operands of that size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Sizes = tuple[float, ...]

MATMUL_LAYOUTS = ("nn", "nt", "tn")
BATCHED_MATMUL_LAYOUTS = (*MATMUL_LAYOUTS, "NT", "Tn", "tN", "nN")
SUM_OF_ROWS, ADDED_ROW = "sum rows", "add row"
BY_ROWS = (
    "_softmax",
    "_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    SUM_OF_ROWS,
    ADDED_ROW,
)
# Names that no trace has: launches, by the bytes that the previous operator moved, of a small
# operator in a module and of one by itself, as in loops; and of a view, which computes nothing.
LAUNCH, LAUNCH_IN_LOOP, LAUNCHED_VIEW = "launch", "launch in a loop", "launch of a view"
LAUNCHES = (LAUNCH, LAUNCH_IN_LOOP)
INDEX_ADD, EMBEDDING_BAG = "index_add_", "_embedding_bag"
LOOKUPS = ("index_select", INDEX_ADD, "embedding", "embedding_dense_backward")
# Axis of the width for operators that fetch rows without writing others; bytes of a cache line.
_FETCHED_WIDTH_AXIS = {INDEX_ADD: 1, EMBEDDING_BAG: 2}
_LINE_BYTES = 64
# Axes that caches hold in part: rows of tables, and bytes that were moved since.
_CACHED_AXES = {
    "index_select": (2,),
    "embedding": (2,),
    EMBEDDING_BAG: (3,),
    INDEX_ADD: (2, 3),
    LAUNCH: (0,),
}
# All numbers are in fp32.
_ELEMENT_BYTES = 4
# Precisions by the profiler's names.
_PRECISIONS = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16"}
# Element-wise operators, with the numbers of full-size operands that are measured.
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
# Operators on tensors whose rows are not contiguous.
STRIDED = ("copy_ strided", "cat strided")
CONCATENATIONS = ("cat/1", "cat strided")
COLLECTIVES = {"allreduce_": "all_reduce", "alltoall_base_": "all_to_all"}
# Operators that do the same work as another.
_ALIASES = {
    "_fused_adam_": "_fused_adamw_",
    "_embedding_bag_forward_only": EMBEDDING_BAG,
    "norm": "linalg_vector_norm",
    "amax": "max",
}
# Position of the first matrix among a matmul's inputs.
_FIRST_MATRIX = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
# Full-size tensors of element-wise operators that are not operands: results, unless they are in
# place or small, and further states of an optimizer.
_EXTRA_TENSORS = {**dict.fromkeys(("sum", "max", "linalg_vector_norm"), 0), "_fused_adamw_": 3}


def benchmark_of(name: str, args: Mapping[str, Any]) -> tuple[str, Sizes] | None:
    """Return the microbenchmark that represents a call, and its sizes; None if there is none.

    Parameters
    ----------
    name
        Name of the call in the profiler, such as `aten::mm`.
    args
        Arguments that the profiler records with `record_shapes`.
    """
    _, _, short = name.partition("::")
    short = _ALIASES.get(short, short)
    dims, strides = args.get("Input Dims", []), args.get("Input Strides", [])
    if short in _FIRST_MATRIX:
        return _product(dims, strides, _FIRST_MATRIX[short])
    short = _with_rows(short, dims, args.get("Concrete Inputs", []))
    if short in BY_ROWS:
        width = int(dims[0][-1])
        return short, (_elements(dims[0]) // width, width)
    if short in LOOKUPS:
        return short, _lookup(short, dims, args.get("Concrete Inputs", []))
    if short == EMBEDDING_BAG:
        (rows, width), lookups, bags = dims[0], dims[1][0], dims[2][0]
        return short, (bags, lookups / bags, width, rows)
    if short in BY_ELEMENTS:
        return _by_elements(short, dims, strides)
    return None


def precisions_of(operator: str, args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the precisions of a call's largest floating-point operands.

    Element-wise operators and copies have one per operand, others that of the first. The profiler
    does not report any for lists of tensors.
    """
    given = [
        (_elements(shape), _PRECISIONS[kind])
        for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False)
        if kind in _PRECISIONS
    ]
    largest = max((count for count, _ in given), default=0)
    kinds = tuple(kind for count, kind in given if count == largest)
    return kinds if "/" in operator or operator in STRIDED else kinds[:1]


def in_cache_lines(operator: str, sizes: Any) -> Any:
    """Return sizes of calls (call, axis) with the widths of fetched rows in cache lines.

    This is the average number of lines that a row overlaps, if rows are contiguous from the start
    of a line. Operators that also write as much, such as `index_select`, keep their widths.
    """
    sizes = np.array(sizes, dtype=float)
    if (axis := _FETCHED_WIDTH_AXIS.get(operator)) is not None:
        row_bytes = _ELEMENT_BYTES * sizes[:, axis].astype(int)
        beginnings = np.gcd(row_bytes, _LINE_BYTES)
        sizes[:, axis] = (row_bytes + _LINE_BYTES - beginnings) / _LINE_BYTES
    return sizes


def cached_axes(operator: str) -> tuple[int, ...]:
    """Return the axes that caches hold in part, of an operator with or without its precision."""
    return _CACHED_AXES.get(operator.partition(" ")[0], ())


def moved_bytes(operator: str, sizes: Any) -> Any:
    """Return the bytes of all operands and results of each call (call, axis) of an operator."""
    return _ELEMENT_BYTES * sum(_operands_and_results(operator, sizes))


def distinct_row_bytes(operator: str, sizes: Any) -> Any:
    """Return the bytes of the distinct rows that each call (call, axis) looks up or sums.

    Rows are drawn uniformly: n draws from r rows find r (1 - (1 - 1/r)^n) distinct ones.
    """
    columns = np.asarray(sizes, dtype=float).T
    if operator == EMBEDDING_BAG:
        bags, pooling, width, rows = columns
        drawn = bags * pooling
    else:
        drawn, width, rows, *_ = columns
    return _ELEMENT_BYTES * width * rows * (1 - (1 - 1 / rows) ** drawn)


def last_used_bytes(operator: str, sizes: Any) -> Any:
    """Return the bytes that each call (call, axis) uses last: results, rows summed or changed."""
    if operator == INDEX_ADD:
        return distinct_row_bytes(operator, sizes)
    _, results = _operands_and_results(operator, sizes)
    rows = distinct_row_bytes(operator, sizes) if operator == EMBEDDING_BAG else 0.0
    return _ELEMENT_BYTES * results + rows


def _operands_and_results(operator: str, sizes: Any) -> tuple[Any, Any]:
    """Return the elements of each call's operands, and of results that are not among them.

    For rows that are changed, these are the added rows and the changed rows.
    """
    columns = np.asarray(sizes, dtype=float).T
    name, _, count = operator.partition("/")
    if operator.rpartition(" ")[0].endswith("product"):
        *batch, m, n, k = columns
        return math.prod(batch) * (m * k + k * n), math.prod(batch) * m * n
    if operator in BY_ROWS:
        elements = columns[0] * columns[1]
        results = columns[1] if operator == SUM_OF_ROWS else elements
        return (2 if "backward" in operator else 1) * elements, results
    if operator == EMBEDDING_BAG:
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
    return int(count) * columns[0], _EXTRA_TENSORS.get(name, not name.endswith("_")) * columns[0]


def collective_bytes(args: Mapping[str, Any]) -> int:
    """Return the bytes of the larger of a rank's input and output in a collective."""
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
    """Return separate names for sums of all rows and additions of one: biases and gradients."""
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
    counts = [_elements(shape) for shape in dims]
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
    """Count the elements of a tensor, or of all tensors in a list."""
    if dims and isinstance(dims[0], list):
        return sum(map(_elements, dims))
    return math.prod(dims)


def _is_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Return whether a tensor's elements, or those of each tensor in a list, are contiguous."""
    if shape and isinstance(shape[0], list):
        return all(map(_is_dense, shape, strides))
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
