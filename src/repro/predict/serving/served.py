"""What is served, how it is split and on what: rows of models and batches, and their engine."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.serving import ServingCosts, ServingStack
from repro.errors import ReproError
from repro.predict.decoders import Decoders, model_columns
from repro.predict.workload import Array


@dataclass(frozen=True)
class Format:
    """Weights of linear layers in memory, and the arithmetic that multiplies them.

    Attributes
    ----------
    weight_bytes
        Size of one element with its part of a scale.
    units
        Arithmetic by preference; the first that a GPU has units for is used.
    cache
        Precision of keys and values if none is stated.
    others
        Format of layers other than experts, if they have another.
    """

    weight_bytes: float
    units: tuple[str, ...]
    cache: str
    others: str = ""


# NVFP4 has a scale of one byte per 16 elements, MXFP4 per 32, INT4 (AWQ) of two bytes per 128.
# Weights in MXFP4 and INT4 are converted before they are multiplied. NVIDIA's fp4 weights of
# DeepSeek and OpenAI's of GPT-OSS are experts only.
FORMATS: Mapping[str, Format] = {
    "bf16": Format(2.0, ("bf16",), "bf16"),
    "fp8": Format(1.0, ("fp8",), "fp8"),
    "fp4": Format(0.5 + 1 / 16, ("nvfp4",), "fp8"),
    "mxfp4": Format(0.5 + 1 / 32, ("mxfp8", "bf16"), "fp8"),
    "int4": Format(0.5 + 2 / 128, ("bf16",), "bf16"),
    "fp4-experts": Format(0.5 + 1 / 16, ("nvfp4",), "fp8", others="bf16"),
    "mxfp4-experts": Format(0.5 + 1 / 32, ("mxfp8", "bf16"), "fp8", others="bf16"),
}
# Bytes of an element of the cache.
CACHE_BYTES: Mapping[str, float] = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5 + 1 / 16}
_ALIKE = {
    **dict.fromkeys(("fp16", "float16", "bfloat16", "half"), "bf16"),
    **dict.fromkeys(("float8", "fp8_e4m3", "fp8_e5m2", "fp8_block"), "fp8"),
    **dict.fromkeys(("nvfp4", "w4a4"), "fp4"),
    **dict.fromkeys(("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"), "mxfp4"),
    **dict.fromkeys(("w4a16", "int4_wo", "awq", "int4_awq", "gptq", "w4a16_awq"), "int4"),
}


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
    """A GPU, which need not exist, formats of weights and cache, and software.

    `half_widths` are halves of the 90 % intervals of ln(time), of dense models and of mixtures of
    experts; wider where nothing of the software was measured on the GPU.
    """

    device: Gpu
    weights: str
    cache: str
    stack: ServingStack
    costs: ServingCosts
    half_widths: tuple[float, float]

    def __post_init__(self) -> None:
        for name in (self.weights, self.cache):
            if not any(self._has(units) for units in FORMATS[name].units):
                of = f" of the cache of {self.weights}" if name != self.weights else ""
                raise ReproError(
                    f"precision {name!r}{of}: {self.device.label} has no units for it; take bf16"
                )

    def _has(self, units: str) -> bool:
        """Return whether the GPU multiplies in a precision; AMD's fp4 has scales of its own."""
        return units in self.device.precisions or bool(units == "nvfp4" and self.device.fp4_flops)

    def units(self, weights: str) -> str:
        """Return the arithmetic that multiplies weights in a format."""
        return next(units for units in FORMATS[weights].units if self._has(units))

    def half_width(self, rows: Served) -> Array:
        """Return half of the 90 % interval of ln(time) of each row."""
        dense, mixture = self.half_widths
        return np.where(rows.mixture > 0, mixture, dense)

    @property
    def others(self) -> str:
        """Format of the linear layers other than experts."""
        return FORMATS[self.weights].others or self.weights


def precision(name: str, known: Collection[str] = FORMATS) -> str:
    """Return the name in `known` of a precision as tables spell it.

    Raises
    ------
    ReproError
        It is no format of weights, or not in `known`.
    """
    found = _ALIKE.get(name.lower(), name.lower())
    if found not in known:
        spelled = (other for other, meant in _ALIKE.items() if meant in known)
        choices = ", ".join((*known, *spelled))
        raise ReproError(f"unknown precision {name!r}; choose from: {choices}")
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
