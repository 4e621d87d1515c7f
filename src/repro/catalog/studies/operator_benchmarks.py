"""Microbenchmarks of PyTorch operators, and the sizes that determine their time.

Names are those of torch's profiler without `aten::` or `c10d::`. The axes of sizes are:

- `product`, `batched product` (matmuls): (batch,) m, n, k. A suffix states how operands lie: `n` as
  they are, `t` transposed; in capitals if the same row of the next batch follows, as with heads.
- `_softmax`, `native_layer_norm` and the like, sums of all rows, and additions of one row to all:
  rows, width.
- lookups: number of rows, width, rows of the table. Bags: number of bags, rows per bag, width, rows
  of the table.
- all others: elements of the largest tensor; a suffix counts the operands of that size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Sizes = tuple[float, ...]

SUM_OF_ROWS, ADDED_ROW = "sum rows", "add row"
BY_ROWS = (
    "_softmax",
    "_softmax_backward_data",
    "native_layer_norm",
    "native_layer_norm_backward",
    SUM_OF_ROWS,
    ADDED_ROW,
)
INDEX_ADD, EMBEDDING_BAG = "index_add_", "_embedding_bag"
LOOKUPS = ("index_select", INDEX_ADD, "embedding", "embedding_dense_backward")
# Axis of a table's rows, which caches hold in part: time is linear in its logarithm.
_CACHED_AXIS = {"index_select": 2, "embedding": 2, INDEX_ADD: 2, EMBEDDING_BAG: 3}
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
# Operators that do the same work as another.
_ALIASES = {
    "_fused_adam_": "_fused_adamw_",
    "_embedding_bag_forward_only": EMBEDDING_BAG,
    "norm": "linalg_vector_norm",
    "amax": "max",
}
# Position of the first matrix among a matmul's inputs.
_FIRST_MATRIX = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}


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


def cached_axis(operator: str) -> int | None:
    """Return the axis that caches hold in part, of an operator with or without its precision."""
    return _CACHED_AXIS.get(operator.partition(" ")[0])


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
