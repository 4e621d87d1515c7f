"""Published measurements of single operators: fitted costs, and predictions near measured sizes."""

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
    decoding_s,
    multiplier,
    node_collective_s,
    product_s,
)
from repro.predict.workload import Array

OPERATORS = "operators.yaml"
MEASURED = PUBLISHED / "operators"
# Generation whose kernels stand for those of generations without measurements.
_ALIKE = {
    **dict.fromkeys(("volta", "ada", "cdna2", "cdna3", "cdna4"), "ampere"),
    "blackwell-rtx": "hopper",
    "blackwell-ultra": "blackwell",
}
# Measurements that a time is interpolated from, and smoothing of the interpolation.
_NEIGHBOURS, _SMOOTHING = 60, 0.5
# Addition to the half width for GPUs without measurements.
_OTHER_GPU = 0.25
_OPERAND_BYTES = {"bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Operator:
    """One kind of kernel: the columns `axes` of its size in a table, and its time.

    `time_s` predicts seconds of rows of one GPU and precision from rates and `costs`; `work` counts
    their operations, or bytes. Values of the columns `apart` have separate costs.
    """

    axes: tuple[str, ...]
    costs: type[Entry]
    time_s: Callable[[pd.DataFrame, str, Rates, Any], Array]
    work: Callable[[pd.DataFrame], Array]
    apart: tuple[str, ...] = ()


def _axes(kind: str, rows: pd.DataFrame) -> list[Array]:
    return [rows[name].to_numpy(dtype=float) for name in KINDS[kind].axes]


def _product_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Any) -> Array:
    m, n, k = _axes("gemm", rows)
    operand_bytes = _OPERAND_BYTES[dtype]
    seconds = product_s(m, n, k, operand_bytes, multiplier(rates, costs))
    return seconds if dtype == "bf16" else seconds + cast_s(m, k, operand_bytes, rates, costs)


def _prefill_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Any) -> Array:
    batch, tokens, heads, kv_heads, head_dim = _axes("attention_prefill", rows)
    return attention_s(batch, tokens, heads, kv_heads, head_dim, rates, costs)


def _decode_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Any) -> Array:
    batch, tokens, _, kv_heads, head_dim = _axes("attention_decode", rows)
    return decoding_s(batch, tokens, kv_heads, head_dim, _OPERAND_BYTES[dtype], rates, costs)


def _collective(rows: pd.DataFrame) -> str:
    """Return the only collective of rows by its name in nccl-tests."""
    name = str(rows.collective.iloc[0])
    return "all_to_all" if name == "alltoall" else name


def _link_bytes(rows: pd.DataFrame) -> Array:
    size, ranks = _axes("nccl", rows)
    return bus_factor(_collective(rows), ranks) * size


def _collective_s(rows: pd.DataFrame, dtype: str, rates: Rates, costs: Any) -> Array:
    _, ranks = _axes("nccl", rows)
    waiting = steps(_collective(rows), ranks)
    return node_collective_s(_link_bytes(rows), waiting, ranks, rates, costs)


KINDS: Mapping[str, Operator] = {
    "gemm": Operator(
        ("m", "n", "k"),
        ProductCosts,
        _product_s,
        lambda rows: (2.0 * rows.m * rows.n * rows.k).to_numpy(),
    ),
    "nccl": Operator(
        ("size_bytes", "ranks"), CollectiveCosts, _collective_s, _link_bytes, apart=("collective",)
    ),
    "attention_decode": Operator(
        ("batch", "kv_len", "heads", "kv_heads", "head_dim"),
        AttentionCosts,
        _decode_s,
        lambda rows: (1.0 * rows.batch * rows.kv_len * rows.kv_heads * rows.head_dim).to_numpy(),
    ),
    "attention_prefill": Operator(
        ("batch", "seq", "heads", "kv_heads", "head_dim"),
        AttentionCosts,
        _prefill_s,
        lambda rows: (2.0 * rows.batch * rows.heads * rows.seq**2 * rows.head_dim).to_numpy(),
    ),
}


class MeasuredOperator(Entry):
    """Costs of one kind of operator on one GPU, fitted to measurements.

    `variant` is its precision, and the name of a collective. `mape_pct` is the error of the costs
    alone. `held_out_mape_pct` and the 90 % quantile `half_width` of `|ln(predicted / measured)|`
    are errors for held-out shapes, with interpolation between measured ones.
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
    """Read all fitted operators.

    Raises
    ------
    ReproError
        The file is missing or not valid.
    """
    found: list[MeasuredOperator] = read_params(OPERATORS, list[MeasuredOperator])
    return found


def operator_costs(kind: str, device: Gpu, *variant: str) -> MeasuredOperator:
    """Return the costs on a GPU, or on one of its generation, or of a generation like it.

    If none of these was measured in the precision, the newest GPU that was is taken.

    Raises
    ------
    ReproError
        The precision was not measured on any GPU.
    """
    every = [one for one in read_operators() if one.kind == kind]
    known = [one for one in every if one.variant == variant]
    if not known:
        others = ", ".join(sorted({" ".join(one.variant) for one in every}))
        raise ReproError(f"no {kind} was measured in {' '.join(variant)!r}; known are {others}")
    same = [one for one in known if read_gpus()[one.gpu] == device]
    own, alike = (
        [one for one in known if gpu(one.gpu).generation == generation]
        for generation in (device.generation, _ALIKE.get(device.generation))
    )
    return (same or own or alike or known[-1:])[0]


def rates(device: Gpu, kind: str, dtype: str) -> Rates:
    """Return a GPU's peaks for a kind of operator."""
    flops = device.peak_flops
    if kind == "gemm" and dtype != "bf16":
        flops = device.fp8_flops or device.peak_flops
        flops = device.fp4_flops or flops if dtype == "nvfp4" else flops
    return Rates(
        flops,
        device.memory_gbytes_per_s * 1e9,
        device.multiprocessors,
        device.link_gbytes_per_s * 1e9,
    )


def kind_of(columns: pd.Index) -> str | None:
    """Return the kind of operator of a table with such columns; None for other tables."""
    return next((name for name, one in KINDS.items() if set(one.axes) <= set(columns)), None)


def variants(kind: str, rows: pd.DataFrame) -> Iterator[tuple[tuple[str, ...], Array]]:
    """Yield each variant in a table of one GPU, and the positions of its rows."""
    columns = ["dtype", *KINDS[kind].apart]
    names = rows[columns].astype(str).agg(" ".join, axis=1)
    for name, at in names.groupby(names).indices.items():
        yield tuple(str(name).split()), np.asarray(at)


def costs_alone_s(kind: str, rows: pd.DataFrame, variant: tuple[str, ...], device: Gpu) -> Array:
    """Predict seconds of rows of one GPU and variant from costs alone."""
    found = operator_costs(kind, device, *variant)
    return KINDS[kind].time_s(rows, variant[0], rates(device, kind, variant[0]), found.value)


def on_device_s(kind: str, rows: pd.DataFrame, variant: tuple[str, ...], device: Gpu) -> Array:
    """Predict seconds of operators of one variant on a GPU, which need not exist.

    If its generation was measured, interpolated errors of measured shapes correct the costs.

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
    """Predict seconds of products whose operands are in their precision already.

    Published products below half precision include a cast of (m, k), which may take longer than
    the product. Without it, half precision's costs apply, with the other's peak and bytes. On an
    H200, 125 products in fp8 agree within 11 % on average
    (`data/measured/h200-sxm-141gb/gpu_operators.nc`).
    """
    if dtype == "bf16":
        return on_device_s("gemm", rows, (dtype,), device)
    m, n, k = _axes("gemm", rows)
    return product_s(m, n, k, _OPERAND_BYTES[dtype], product_multiplier(dtype, device))


def product_multiplier(dtype: str, device: Gpu) -> Multiplier:
    """Return a GPU that multiplies operands which are in their precision already."""
    costs = operator_costs("gemm", device, "bf16").value
    return multiplier(rates(device, "gemm", dtype), costs)


def _by_variant(kind: str, rows: pd.DataFrame) -> Iterator[tuple[Gpu, tuple[str, ...], Array]]:
    """Yield each GPU and variant in a table, and the positions of its rows."""
    for label, of_gpu in rows.groupby("gpu").indices.items():
        for variant, within in variants(kind, rows.iloc[of_gpu]):
            yield gpu(find_gpu_name(str(label))), variant, np.asarray(of_gpu)[within]


def operator_s(kind: str, rows: pd.DataFrame) -> Array:
    """Predict seconds of operators, each with `on_device_s` of its GPU.

    Raises
    ------
    ReproError
        A GPU is unknown, or a precision was not measured.
    """
    seconds = np.empty(len(rows))
    for device, variant, at in _by_variant(kind, rows):
        seconds[at] = on_device_s(kind, rows.take(at), variant, device)
    return seconds


def half_width(kind: str, rows: pd.DataFrame) -> Array:
    """Return half of the 90 % interval of ln(time); wider on GPUs without measurements."""
    width = np.empty(len(rows))
    for device, variant, at in _by_variant(kind, rows):
        found = operator_costs(kind, device, *variant)
        other = 0.0 if read_gpus()[found.gpu] == device else _OTHER_GPU
        width[at] = np.hypot(found.half_width, other)
    return width


def sizes(kind: str, rows: pd.DataFrame) -> Array:
    """Return the logarithms of rows' sizes (row, axis)."""
    where: Array = np.log2(np.stack(_axes(kind, rows), axis=1))
    return where


def interpolator(where: Array, missed: Array) -> RBFInterpolator:
    """Interpolate the errors of costs, ln(measured / predicted), between measured sizes."""
    # Sizes that were measured twice would make the interpolation singular without smoothing.
    return RBFInterpolator(
        where, missed, neighbors=_NEIGHBOURS, smoothing=_SMOOTHING, kernel="linear"
    )


def measured_rows(kind: str, name: str) -> pd.DataFrame:
    """Read the published measurements of a kind of operator on a GPU."""
    label = read_gpus()[name].published_as[-1]
    return pd.read_csv(MEASURED / f"{kind}_{label}.csv")


@lru_cache
def _interpolator(kind: str, name: str, variant: tuple[str, ...]) -> RBFInterpolator:
    rows = measured_rows(kind, name)
    rows = rows.take(dict(variants(kind, rows))[variant])
    seconds = costs_alone_s(kind, rows, variant, read_gpus()[name])
    return interpolator(sizes(kind, rows), np.log(rows.time_us * 1e-6 / seconds).to_numpy())
