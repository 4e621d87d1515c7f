"""What is served, how it is split and on what: rows of models and batches, and their engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.serving import ServingCosts, ServingStack
from repro.errors import ReproError
from repro.predict.decoders import Decoders, model_columns
from repro.predict.workload import Array

# Bytes of a weight, or of an element of the cache.
BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0}
_ALIKE = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "half": "bf16"}


@dataclass(frozen=True)
class Served(Decoders):
    """Rows of models, splits and batches; float arrays of one length.

    Attributes
    ----------
    tp, pp, ep
        Tensor, pipeline and expert parallel sizes. Experts are spread over `ep` GPUs: up to `tp` of
        them have the same sequences; where there are more, each `tp` of them have sequences of
        their own, and exchange tokens.
    batch, input_tokens, output_tokens
        Sequences at once of all these GPUs, their prompts and what is written to each.
    """

    tp: Array
    pp: Array
    ep: Array
    batch: Array
    input_tokens: Array
    output_tokens: Array

    @property
    def groups(self) -> Array:
        """Groups of GPUs with sequences of their own."""
        count: Array = np.maximum(self.ep / self.tp, 1.0)
        return count

    @property
    def gpus(self) -> Array:
        """All GPUs of one copy of the model."""
        count: Array = self.tp * self.pp * self.groups
        return count

    def as_held(self) -> "Served":
        """The same rows with keys and values as GPUs hold them: each its own head at least."""
        return replace(self, kv_heads=np.maximum(self.kv_heads, self.tp))


@dataclass(frozen=True)
class Engine:
    """A GPU, which need not exist, precisions of weights and of the cache, and software; half of
    the 90 % interval of ln(time), wider where nothing of the software was measured."""

    device: Gpu
    weights: str
    cache: str
    stack: ServingStack
    costs: ServingCosts
    half_width: float

    def __post_init__(self) -> None:
        for name in (self.weights, self.cache):
            if BYTES[name] < BYTES["bf16"] and self.device.fp8_flops is None:
                raise ReproError(
                    f"precision {name!r}: {self.device.label} has no units for it; take bf16"
                )


def precision(name: str) -> str:
    """A precision as tables call it, by the name it has here.

    Raises
    ------
    ReproError
        No product was measured in it.
    """
    found = _ALIKE.get(name.lower(), name.lower())
    if found not in BYTES:
        known = ", ".join((*BYTES, *_ALIKE))
        raise ReproError(f"unknown precision {name!r}; choose from: {known}")
    return found


def served(shape: DecoderShape, **columns: Any) -> Served:
    """Rows of one model; `columns` are the other fields of `Served`, which broadcast.

    Raises
    ------
    ReproError
        A size is less than one, or groups do not divide the model.
    """
    values = model_columns(shape) | columns
    arrays = np.broadcast_arrays(*(np.asarray(values[one.name], float) for one in fields(Served)))
    names = (one.name for one in fields(Served))
    rows = Served(**{name: array.ravel() for name, array in zip(names, arrays, strict=True)})
    check(rows)
    return rows


def check(rows: Served) -> None:
    """Refuse rows that cannot be served at all.

    Raises
    ------
    ReproError
        A size is less than one, or groups do not divide the model; the message names the value.
    """
    for name in ("tp", "pp", "ep", "batch", "input_tokens", "output_tokens"):
        values = getattr(rows, name)
        if not np.all(values >= 1):
            wrong = values[~(values >= 1)][0]
            raise ReproError(f"{name} is {wrong:g}; take 1 or more")
    uneven = np.mod(rows.heads, rows.tp) > 0
    if uneven.any():
        raise ReproError(
            f"tp {rows.tp[uneven][0]:g} does not divide {rows.heads[uneven][0]:g} heads; "
            "take one of its divisors"
        )
