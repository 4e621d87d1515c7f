"""Measured operators: which there are, what their costs are, and times near those measured."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.interpolate import RBFInterpolator

from repro.catalog.reading import Entry, read_params
from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu, read_gpus
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.network.links import steps
from repro.predict.operators.kernels import (
    AttentionCosts,
    CollectiveCosts,
    Multiplier,
    ProductCosts,
    Rates,
    attention_s,
    cast_s,
    collective_s,
    decoding_s,
    multiplier,
    product_s,
)
from repro.predict.workload import Array

OPERATORS = "operators.yaml"
MEASURED = PUBLISHED / "operators"
# Generations whose kernels another one's are taken to be like, where none of its own was measured.
_ALIKE = dict.fromkeys(("volta", "ada", "cdna2", "cdna3", "cdna4"), "ampere")
# Measurements that a time is interpolated from, and how much smoother than through each of them.
_NEIGHBOURS, _SMOOTHING = 60, 0.5
# What another GPU's costs add to the half width.
_OTHER = 0.25
_OPERAND_BYTES = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Operator:
    """One kind of kernel: how a table shows it, and what it takes.

    Attributes
    ----------
    axes
        Columns that say its size, all positive numbers.
    costs
        What `time_s` takes as its last argument.
    time_s
        Seconds of rows of one GPU and precision.
    work
        Its operations, or bytes: what a constant rate would take its time from.
    apart
        Columns whose values have costs of their own, beside GPU and precision.
    """

    axes: tuple[str, ...]
    costs: type[Entry]
    time_s: Callable[[pd.DataFrame, str, Rates, Entry], Array]
    work: Callable[[pd.DataFrame], Array]
    apart: tuple[str, ...] = ()


def _product_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Entry) -> Array:
    m, n, k = _columns(rows, ("m", "n", "k"))
    operand_bytes = _OPERAND_BYTES[dtype]
    seconds = product_s(m, n, k, operand_bytes, multiplier(rates, costs))
    return seconds if dtype == "bf16" else seconds + cast_s(m, k, operand_bytes, rates, costs)


def _prefill_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Entry) -> Array:
    batch, tokens, heads, kv_heads, head_dim = _columns(rows, ATTENTION_PREFILL.axes)
    return attention_s(batch, tokens, heads, kv_heads, head_dim, rates, costs)


def _decode_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Entry) -> Array:
    batch, tokens, _, kv_heads, head_dim = _columns(rows, ATTENTION_DECODE.axes)
    return decoding_s(batch, tokens, kv_heads, head_dim, _OPERAND_BYTES[dtype], rates, costs)


def _link_bytes(rows: pd.DataFrame) -> Array:
    factor = bus_factor(_collective(rows), rows.ranks.to_numpy(dtype=float))
    size: Array = rows.size_bytes.to_numpy(dtype=float)
    return factor * size


def _collective(rows: pd.DataFrame) -> str:
    """The one collective of some rows, as nccl-tests or this project calls it."""
    return {"alltoall": "all_to_all"}.get(name := str(rows.collective.iloc[0]), name)


def _collective_s(rows: pd.DataFrame, rates: Rates, costs: Any) -> Array:
    ranks = rows.ranks.to_numpy(dtype=float)
    return collective_s(_link_bytes(rows), steps(_collective(rows), ranks), ranks, rates, costs)


def _columns(rows: pd.DataFrame, names: tuple[str, ...]) -> list[Array]:
    return [rows[name].to_numpy(dtype=float) for name in names]


PRODUCT = Operator(
    ("m", "n", "k"),
    ProductCosts,
    _product_s,
    lambda rows: (2.0 * rows.m * rows.n * rows.k).to_numpy(),
)
ATTENTION_PREFILL = Operator(
    ("batch", "seq", "heads", "kv_heads", "head_dim"),
    AttentionCosts,
    _prefill_s,
    lambda rows: (2.0 * rows.batch * rows.heads * rows.seq**2 * rows.head_dim).to_numpy(),
)
ATTENTION_DECODE = Operator(
    ("batch", "kv_len", "heads", "kv_heads", "head_dim"),
    AttentionCosts,
    _decode_s,
    lambda rows: (1.0 * rows.batch * rows.kv_len * rows.kv_heads * rows.head_dim).to_numpy(),
)
COLLECTIVE = Operator(
    ("size_bytes", "ranks"),
    CollectiveCosts,
    lambda rows, dtype, rates, costs: _collective_s(rows, rates, costs),
    lambda rows: _link_bytes(rows),
    apart=("collective",),
)
KINDS: Mapping[str, Operator] = {
    "gemm": PRODUCT,
    "nccl": COLLECTIVE,
    "attention_decode": ATTENTION_DECODE,
    "attention_prefill": ATTENTION_PREFILL,
}


class MeasuredOperator(Entry):
    """Costs of one kind of operator on one GPU, fitted to measurements.

    `variant` is its precision, and for collectives which one it is.

    `mape_pct` is what the costs alone miss measurements by, `held_out_mape_pct` what they do
    together with measurements of other shapes nearby, and `half_width` the 90 % quantile of
    `|ln(predicted / measured)|` then.
    """

    kind: str
    gpu: str
    variant: tuple[str, ...]
    rows: int
    mape_pct: float
    held_out_mape_pct: float
    half_width: float
    costs: dict[str, float]

    @property
    def value(self) -> Entry:
        """The costs."""
        return KINDS[self.kind].costs(**self.costs)


def read_operators() -> list[MeasuredOperator]:
    """All of them.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    found: list[MeasuredOperator] = read_params(OPERATORS, list[MeasuredOperator])
    return found


def operator_costs(kind: str, device: Gpu, *variant: str) -> MeasuredOperator:
    """Those of the GPU; else of one of its generation, or of the one it is taken to be like.

    Raises
    ------
    ReproError
        Nothing like it was measured in that precision.
    """
    known = [one for one in read_operators() if one.kind == kind and one.variant == variant]
    generations = (device.generation, _ALIKE.get(device.generation, device.generation))
    for suits in (
        lambda one: read_gpus()[one.gpu] == device,
        lambda one: gpu(one.gpu).generation == generations[0],
        lambda one: gpu(one.gpu).generation == generations[1],
    ):
        if found := next(filter(suits, known), None):
            return found
    # A precision that was not measured on anything alike: the newest GPU's.
    if known:
        return known[-1]
    others = sorted({" ".join(one.variant) for one in read_operators() if one.kind == kind})
    raise ReproError(
        f"no {kind} was measured in {' '.join(variant)!r}; known are {', '.join(others)}"
    )


def rates(device: Gpu, kind: str, dtype: str) -> Rates:
    """A GPU's peaks for a kind of operator."""
    flops = device.peak_flops
    if kind == "gemm" and dtype != "bf16":
        flops = device.fp8_flops or device.peak_flops
    return Rates(
        flops,
        device.memory_gbytes_per_s * 1e9,
        device.multiprocessors,
        device.link_gbytes_per_s * 1e9,
    )


def kind_of(columns: pd.Index) -> str | None:
    """The kind of operator that a table with such columns has; None for other tables."""
    return next((name for name, one in KINDS.items() if set(one.axes) <= set(columns)), None)


def variants(kind: str, rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], Array]]:
    """Each variant of a table of one GPU, and where its rows are."""
    columns = ["dtype", *KINDS[kind].apart]
    names = rows[columns].astype(str).agg(" ".join, axis=1)
    for name, at in names.groupby(names).indices.items():
        yield tuple(str(name).split()), np.asarray(at)


def costs_alone_s(kind: str, rows: pd.DataFrame, variant: tuple[str, ...], device: Gpu) -> Array:
    """Seconds of rows of one GPU and variant, from costs alone."""
    found = operator_costs(kind, device, *variant)
    return KINDS[kind].time_s(rows, variant[0], rates(device, kind, variant[0]), found.value)


def on_device_s(kind: str, rows: pd.DataFrame, variant: tuple[str, ...], device: Gpu) -> Array:
    """Seconds of operators of one variant on a GPU, which need not exist: from costs, mended by
    what measurements of near shapes missed them by where its generation was measured.

    Raises
    ------
    ReproError
        The precision was not measured.
    """
    seconds = costs_alone_s(kind, rows, variant, device)
    found = operator_costs(kind, device, *variant)
    if gpu(found.gpu).generation == device.generation:
        seconds = seconds * np.exp(_interpolator(kind, found.gpu, variant)(sizes(kind, rows)))
    return seconds


def product_alone_s(rows: pd.DataFrame, dtype: str, device: Gpu) -> Array:
    """Seconds of products whose operands are in their precision already.

    What was published below half precision finds the scale of (m, k) and casts it first, which may
    take longer than the product. Alone it is half precision's, at the other's peak and bytes: on an
    H200 125 products in fp8 took what that lets expect within 11 % on average
    (`data/measured/h200-sxm-141gb/gpu_operators.nc`).
    """
    if dtype == "bf16":
        return on_device_s("gemm", rows, (dtype,), device)
    m, n, k = _columns(rows, PRODUCT.axes)
    return product_s(m, n, k, _OPERAND_BYTES[dtype], product_multiplier(dtype, device))


def product_multiplier(dtype: str, device: Gpu) -> Multiplier:
    """A GPU that multiplies operands which are in their precision already."""
    costs = operator_costs("gemm", device, "bf16").value
    return multiplier(rates(device, "gemm", dtype), costs)


def operator_s(kind: str, rows: pd.DataFrame) -> Array:
    """Seconds of operators: from costs, mended by what measurements of near shapes missed them by.

    Only a GPU of a generation that was measured is mended.

    Raises
    ------
    ReproError
        A GPU is unknown, or a precision was not measured.
    """
    seconds = np.empty(len(rows))
    for label, of_gpu in rows.groupby("gpu").indices.items():
        device = gpu(find_gpu_name(str(label)))
        for variant, within in variants(kind, rows.iloc[of_gpu]):
            at = np.asarray(of_gpu)[within]
            seconds[at] = on_device_s(kind, rows.take(at), variant, device)
    return seconds


def sizes(kind: str, rows: pd.DataFrame) -> Array:
    """Where rows stand among others: the logarithms of their axes."""
    where: Array = np.log2(np.stack(_columns(rows, KINDS[kind].axes), axis=1))
    return where


def interpolator(where: Array, missed: Array) -> RBFInterpolator:
    """Interpolates what costs missed, ln(measured / predicted), between measured sizes."""
    # Sizes that were measured twice would make the interpolation singular without smoothing.
    return RBFInterpolator(
        where, missed, neighbors=_NEIGHBOURS, smoothing=_SMOOTHING, kernel="linear"
    )


def measured_rows(kind: str, name: str) -> pd.DataFrame:
    """What was measured of a kind on a GPU."""
    label = read_gpus()[name].published_as[-1]
    return pd.read_csv(MEASURED / f"{kind}_{label}.csv")


@lru_cache
def _interpolator(kind: str, name: str, variant: tuple[str, ...]) -> RBFInterpolator:
    rows = measured_rows(kind, name)
    rows = rows.take(dict(variants(kind, rows))[variant])
    seconds = costs_alone_s(kind, rows, variant, read_gpus()[name])
    return interpolator(sizes(kind, rows), np.log(rows.time_us * 1e-6 / seconds).to_numpy())


def half_width(kind: str, rows: pd.DataFrame) -> Array:
    """Half of the 90 % interval of ln(time), from what held-out shapes were off by; wider on GPUs
    that were not measured."""
    width = np.empty(len(rows))
    for label, of_gpu in rows.groupby("gpu").indices.items():
        device = gpu(find_gpu_name(str(label)))
        for variant, within in variants(kind, rows.iloc[of_gpu]):
            found = operator_costs(kind, device, *variant)
            own = read_gpus()[found.gpu] == device
            width[np.asarray(of_gpu)[within]] = (
                found.half_width if own else np.hypot(found.half_width, _OTHER)
            )
    return width
