"""What is trained and how it is split over GPUs, as arrays: the input of the performance model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from repro.catalog.models.papers import Family, Shape
from repro.catalog.parallel.layouts import Layout
from repro.errors import ReproError

Array = NDArray[Any]
Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)


@dataclass(frozen=True)
class Plan:
    """How a training step is split. Every field is one value or an array; all of them broadcast.

    Attributes
    ----------
    global_batch_size, micro_batch_size
        Sequences per iteration of all GPUs; per forward pass of one model replica.
    data_parallel, tensor_parallel, pipeline_parallel
        Sizes of the three groups. Ranks of a tensor-parallel group are neighbours, then come
        data-parallel, then pipeline neighbours (Megatron's order).
    virtual_stages
        Model chunks per pipeline stage (interleaved 1F1B; 1: plain 1F1B).
    recompute
        Activations that the backward pass computes again: none, selective (the attention core),
        full (whole layers); Korthikanti et al., 2023.
    sequence_parallel
        Whether what tensor parallelism replicates is split along the sequence.
    distributed_optimizer
        Whether optimizer states are sharded over data-parallel ranks (ZeRO-1): gradients are
        reduce-scattered, parameters all-gathered.
    overlap_gradient_sync
        Whether gradients travel while the last micro batch's backward pass goes on.
    gradient_bytes
        Size of one gradient on the wire: 2 (fp16) or 4 (fp32).

    Examples
    --------
    >>> plan = Plan(global_batch_size=32, micro_batch_size=4, data_parallel=8)
    >>> plan.pipeline_parallel
    1
    """

    global_batch_size: ArrayLike
    micro_batch_size: ArrayLike = 1
    data_parallel: ArrayLike = 1
    tensor_parallel: ArrayLike = 1
    pipeline_parallel: ArrayLike = 1
    virtual_stages: ArrayLike = 1
    recompute: ArrayLike = "none"
    sequence_parallel: ArrayLike = False
    distributed_optimizer: ArrayLike = False
    overlap_gradient_sync: ArrayLike = False
    gradient_bytes: ArrayLike = 2


def layout_plan(layout: Layout, recompute: Recompute) -> Plan:
    """Return a layout's plan; any ZeRO stage counts as a sharded optimizer."""
    return Plan(
        global_batch_size=layout.micro_batch_size * layout.micro_batches * layout.data_parallel,
        micro_batch_size=layout.micro_batch_size,
        data_parallel=layout.data_parallel,
        tensor_parallel=layout.tensor_parallel,
        pipeline_parallel=layout.pipeline_parallel,
        virtual_stages=layout.virtual_stages,
        recompute=recompute,
        sequence_parallel=layout.sequence_parallel,
        distributed_optimizer=layout.zero > 0,
    )


@dataclass(frozen=True)
class Workload:
    """Models and plans as float arrays that broadcast against each other.

    Fields are those of `Shape` and `Plan`; `decoder_sequence_length` is 0 except for t5,
    `recompute` the index in `RECOMPUTE`, and switches are 0 or 1.
    """

    family: Family
    layers: Array
    hidden_size: Array
    ffn_hidden_size: Array
    attention_heads: Array
    sequence_length: Array
    decoder_sequence_length: Array
    vocabulary_size: Array
    global_batch_size: Array
    micro_batch_size: Array
    data_parallel: Array
    tensor_parallel: Array
    pipeline_parallel: Array
    virtual_stages: Array
    recompute: Array
    sequence_parallel: Array
    distributed_optimizer: Array
    overlap_gradient_sync: Array
    gradient_bytes: Array

    @property
    def gpus(self) -> Array:
        """All GPUs of the job."""
        count: Array = self.data_parallel * self.tensor_parallel * self.pipeline_parallel
        return count

    @property
    def micro_batches(self) -> Array:
        """Micro batches of one replica per iteration."""
        each = np.maximum(self.micro_batch_size * self.data_parallel, 1)
        count: Array = self.global_batch_size / each
        return count

    @property
    def tokens(self) -> Array:
        """Tokens of one micro batch that the last layers and the logits see."""
        s = self.decoder_sequence_length if self.family == "t5" else self.sequence_length
        tokens: Array = self.micro_batch_size * s
        return tokens

    def flat(self) -> tuple["Workload", tuple[int, ...]]:
        """Fields broadcast against each other and raveled, and the shape they had."""
        arrays = np.broadcast_arrays(*(getattr(self, name) for name in ARRAY_FIELDS))
        raveled: dict[str, Any] = {
            name: array.ravel() for name, array in zip(ARRAY_FIELDS, arrays, strict=True)
        }
        return replace(self, **raveled), arrays[0].shape

    def rows(self, chosen: slice | Array) -> "Workload":
        """Some rows of a flat workload."""
        rows: dict[str, Any] = {name: getattr(self, name)[chosen] for name in ARRAY_FIELDS}
        return replace(self, **rows)


ARRAY_FIELDS = tuple(field.name for field in fields(Workload) if field.name != "family")


def workload(family: Family, shape: Shape, plan: Plan) -> Workload:
    """Combine one model's shape with plans.

    Raises
    ------
    ReproError
        `recompute` is not one of none, selective, full.
    """
    return from_columns(
        family,
        **{name: getattr(shape, name) or 0 for name in _SHAPE_FIELDS},
        **{field.name: getattr(plan, field.name) for field in fields(Plan)},
    )


def from_columns(family: Family, **columns: ArrayLike) -> Workload:
    """A workload from one array per field of `Shape` and `Plan`; all broadcast.

    Raises
    ------
    ReproError
        `recompute` is not one of none, selective, full.
    """
    columns["recompute"] = recompute_codes(columns["recompute"])
    return Workload(
        family, **{name: np.asarray(columns[name], dtype=float) for name in ARRAY_FIELDS}
    )


_SHAPE_FIELDS = ARRAY_FIELDS[: ARRAY_FIELDS.index("global_batch_size")]


def recompute_codes(names: ArrayLike) -> Array:
    """Indices in `RECOMPUTE`; numbers are taken as indices already.

    Raises
    ------
    ReproError
        A name is not one of none, selective, full.
    """
    given = np.asarray(names)
    if given.dtype.kind in "fiu":
        indices: Array = given.astype(float)
        wrong = indices[~np.isin(indices, range(len(RECOMPUTE)))]
        if wrong.size:
            raise ReproError(f"recompute {wrong.flat[0]:g} is none of 0, 1, 2 ({RECOMPUTE})")
        return indices
    unknown = sorted(set(np.unique(given).tolist()) - set(RECOMPUTE))
    if unknown:
        raise ReproError(f"unknown recompute {unknown[0]!r}; choose from: {', '.join(RECOMPUTE)}")
    return np.select([given == name for name in RECOMPUTE], np.arange(float(len(RECOMPUTE))))


@dataclass(frozen=True)
class _Rule:
    """One thing that must hold of a plan; `message` may name any field."""

    field: str
    message: str
    holds: Any


# Fields that count something.
_SIZES = tuple(
    name
    for name in ARRAY_FIELDS[: ARRAY_FIELDS.index("recompute")]
    if name != "decoder_sequence_length"
)


def _divides(divisor: Array, value: Array) -> Array:
    divides: Array = np.mod(value, np.maximum(divisor, 1)) == 0
    return divides


def _rules(w: Workload) -> list[_Rule]:
    t, p, v, d = w.tensor_parallel, w.pipeline_parallel, w.virtual_stages, w.data_parallel
    b = w.micro_batch_size
    return [
        *(
            _Rule(name, f"{name} {{{name}:g}} is less than 1", getattr(w, name) >= 1)
            for name in _SIZES
        ),
        _Rule(
            "global_batch_size",
            "global_batch_size {global_batch_size:g} is no multiple of micro_batch_size "
            "{micro_batch_size:g} x data_parallel {data_parallel:g}",
            _divides(b * d, w.global_batch_size),
        ),
        _Rule(
            "tensor_parallel",
            "attention_heads {attention_heads:g} do not divide among "
            "tensor_parallel {tensor_parallel:g}",
            _divides(t, w.attention_heads),
        ),
        _Rule(
            "tensor_parallel",
            "ffn_hidden_size {ffn_hidden_size:g} does not divide among "
            "tensor_parallel {tensor_parallel:g}",
            _divides(t, w.ffn_hidden_size),
        ),
        _Rule(
            "pipeline_parallel",
            "layers {layers:g} do not divide among pipeline_parallel {pipeline_parallel:g} x "
            "virtual_stages {virtual_stages:g}",
            _divides(p * v, w.layers * (2 if w.family == "t5" else 1)),
        ),
        _Rule(
            "virtual_stages",
            "virtual_stages {virtual_stages:g} needs pipeline_parallel above 1 and micro batches "
            "that are a multiple of it",
            (v == 1) | ((p > 1) & _divides(p, w.micro_batches)),
        ),
    ]


def valid(w: Workload) -> Array:
    """Where a plan can run at all, in the broadcast shape of the fields."""
    held = np.broadcast_arrays(*(rule.holds for rule in _rules(w)))
    result: Array = np.logical_and.reduce(held)
    return result


def check(w: Workload) -> None:
    """Refuse plans that cannot run.

    Raises
    ------
    ReproError
        Sizes do not divide; the message names the field and its value in the first such plan.
    """
    for rule in _rules(w):
        if not np.all(rule.holds):
            flat, shape = w.flat()
            where = int(np.argmin(np.broadcast_to(rule.holds, shape).ravel()))
            values = {name: getattr(flat, name)[where] for name in ARRAY_FIELDS}
            raise ReproError(f"{rule.field}: {rule.message.format(**values)}")


def divisors(number: int) -> Array:
    """All of a number, smallest first: the sizes that groups may have."""
    small = np.arange(1, isqrt(number) + 1)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


# Some fifty arrays of this size stay in a second-level cache.
_BLOCK_BYTES = 65536


class _Rows(Protocol):
    @property
    def layers(self) -> Array: ...

    def rows(self, chosen: slice, /) -> Self: ...


_Many = TypeVar("_Many", bound=_Rows)


def in_blocks(many: _Many, evaluate: Callable[[_Many], Mapping[str, Array]]) -> dict[str, Array]:
    """Evaluate flat rows block by block and join the results by name."""
    count, length = max(len(many.layers), 1), _BLOCK_BYTES // many.layers.itemsize
    blocks = [evaluate(many.rows(slice(at, at + length))) for at in range(0, count, length)]
    return {name: np.concatenate([block[name] for block in blocks], axis=-1) for name in blocks[0]}
