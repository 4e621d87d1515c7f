"""Comparison of predictions with measurements of one GPU (`repro gpu`)."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.predict.fused.parameters import read_fused, sustained_name
from repro.predict.operators.measured import KINDS, on_device_s, product_alone_s
from repro.predict.serving.forward import forward
from repro.predict.serving.latency import part_s, pass_s
from repro.predict.serving.parameters import engine
from repro.predict.serving.parts import ForwardPass, Part
from repro.predict.serving.served import Engine, served
from repro.results.measured import measured_on

# Operators shorter than this are mostly start and end of a kernel.
_LONG_US = 20.0
_ALONE = {"tp": 1, "pp": 1, "ep": 1, "output_tokens": 1}


def operator_errors(measured: xr.Dataset) -> pd.DataFrame:
    """Compare operators (`measure_gpu_operators`) with predictions from another GPU's.

    Returns
    -------
    DataFrame
        A row per operator: kind, variant, axes, measured_us (median of repeats), predicted_us,
        error_pct, and published_us of the other GPU.
    """
    device, rows = gpu(measured_on(measured)), measured.drop_vars("time_s").to_dataframe()
    rows["measured_us"] = 1e6 * measured["time_s"].median("repeat").values
    parts = []
    for (kind, variant), found in rows[rows.kind.isin(list(KINDS))].groupby(["kind", "variant"]):
        if kind == "gemm":
            seconds = product_alone_s(found, str(variant), device)
        else:
            seconds = on_device_s(str(kind), found, ("bf16",), device)
        parts.append(found.assign(predicted_us=1e6 * seconds))
    table = pd.concat(parts).dropna(subset="measured_us")
    return table.assign(error_pct=100 * (table.predicted_us / table.measured_us - 1))


def operator_summary(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarize `operator_errors` of some GPUs (`repro.results.measured.by_gpu`).

    Returns
    -------
    DataFrame
        Indexed by gpu, kind and variant: operators and mape_pct of all; long_operators,
        long_mape_pct and long_median_pct (signed) of those longer than 20 microseconds.
    """
    long = errors.error_pct.where(errors.measured_us > _LONG_US)
    columns = errors.assign(absolute=errors.error_pct.abs(), long=long, long_absolute=long.abs())
    return columns.groupby(["gpu", "kind", "variant"]).agg(
        operators=("absolute", "size"),
        mape_pct=("absolute", "mean"),
        long_operators=("long", "count"),
        long_mape_pct=("long_absolute", "mean"),
        long_median_pct=("long", "median"),
    )


def memory_rates(measured: xr.Dataset) -> pd.DataFrame:
    """Return the memory rate of additions: moved_bytes, measured_us and gbytes_per_s (1e9 B/s)."""
    added = measured.isel(row=np.flatnonzero(measured["kind"].values == "addition"))
    moved = added["moved_bytes"].values
    seconds = added["time_s"].median("repeat").values
    return pd.DataFrame(
        {"moved_bytes": moved, "measured_us": 1e6 * seconds, "gbytes_per_s": moved / seconds / 1e9}
    )


def sustained_rates(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the sustained rate of matmuls without a pause with their first rate.

    `measured` is the result of `repro.experiments.machine.gpu.measure_gpu_sustained`.

    Returns
    -------
    DataFrame
        A row per matmul: variant, m, n, k; burst_tflops of the first 20 ms after a pause;
        sustained_tflops, power_w and clock_mhz, medians over the last half of the time; kept, the
        ratio of the two rates; fitted, this ratio as fitted to training runs.
    """
    generation = gpu(measured_on(measured)).generation
    known = read_fused().parameters.sustained
    late = measured.where(measured["ended_s"] > measured["ended_s"].max("replay") / 2)
    late = late.median("replay")
    late["burst_s"] = measured["product_s"].isel(replay=0)
    table = late.to_dataframe(["product", "variant"]).reset_index()
    teraflops = 2e-12 * table.m * table.n * table.k
    return table[["variant", "m", "n", "k"]].assign(
        burst_tflops=teraflops / table.burst_s,
        sustained_tflops=teraflops / table.product_s,
        kept=table.burst_s / table.product_s,
        power_w=table.power_w,
        clock_mhz=table.clock_mhz,
        fitted=[known[sustained_name(generation, variant)] for variant in table.variant],
    )


def decoding_errors(measured: xr.Dataset) -> pd.DataFrame:
    """Compare decoders' forward passes as CUDA graphs with the sum of their predicted operators.

    `measured` is the result of `repro.experiments.machine.gpu_decoding.measure_gpu_decoding`.

    Returns
    -------
    DataFrame
        A row per pass: model, weights (precision), phase (`token` or `prompt`), batch, tokens (in
        the cache or the prompt), measured_ms (median of repeats), host_ms (the same with operators
        launched by the host one after another), predicted_ms and error_pct.
    """
    parts = [
        table.assign(predicted_ms=1e3 * pass_s(predicted, on.costs))
        for table, on, predicted in _passes(measured.median("repeat"), "launch")
    ]
    found = pd.concat(parts, ignore_index=True)
    found = found.rename(columns={"graph": "measured_ms", "host": "host_ms"})
    found = found.dropna(subset="measured_ms")
    return found.assign(error_pct=100 * (found.predicted_ms / found.measured_ms - 1))


def decoding_summary(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarize `decoding_errors` of some GPUs.

    Returns
    -------
    DataFrame
        Indexed by gpu, model, weights and phase: passes, mean_pct and largest_pct of absolute
        errors, and median_pct (signed).
    """
    columns = errors.assign(absolute=errors.error_pct.abs())
    return columns.groupby(["gpu", "model", "weights", "phase"], sort=False).agg(
        passes=("absolute", "size"),
        mean_pct=("absolute", "mean"),
        largest_pct=("absolute", "max"),
        median_pct=("error_pct", "median"),
    )


def decoding_parts(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the kernels of decoders' forward passes with predictions of the same work.

    `measured` is the result of
    `repro.experiments.machine.gpu_decoding.measure_gpu_decoding_parts`.

    Returns
    -------
    DataFrame
        A row per pass and part: model, weights, phase, batch, tokens, part, measured_ms and
        predicted_ms.
    """
    names: list[str] = measured["part"].values.tolist()
    parts = []
    for table, on, predicted in _passes(measured, "part"):
        times = pd.DataFrame(0.0, table.index, names)
        for one in predicted:
            times[_part(one)] += 1e3 * part_s(one, on.costs)
        keys = table.drop(columns=names)
        for name in names:
            found = keys.assign(part=name, measured_ms=table[name], predicted_ms=times[name])
            parts.append(found)
    table = pd.concat(parts, ignore_index=True).dropna(subset="measured_ms")
    some: pd.DataFrame = table[(table.measured_ms > 0) | (table.predicted_ms > 0)]
    return some


def _part(predicted: Part) -> str:
    """Return the name of a predicted part in `measure_gpu_decoding_parts`."""
    if predicted.kind == "product":
        return "products"
    return predicted.name if predicted.kind == "elements" else "attention"


def _passes(measured: xr.Dataset, along: str) -> Iterator[tuple[pd.DataFrame, Engine, list[Part]]]:
    """Yield milliseconds of forward passes, with the engine and predicted operators.

    A table has one column for each value of the dimension `along`.
    """
    device = gpu(measured_on(measured))
    for model, weights in product(measured["model"].values, measured["weights"].values):
        on = engine(device, str(weights), cache="bf16", stack="pytorch")
        shape = open_model(str(model)).shape
        chosen = measured.sel(model=model, weights=weights, drop=True)
        for phase, name, batch, tokens in (
            ("token", "output_token_s", "batch", "context"),
            ("prompt", "prompt_s", "prompt_batch", "prompt_tokens"),
        ):
            table = (1e3 * chosen[name]).to_series().unstack(along).reset_index()
            table = table.rename(columns={batch: "batch", tokens: "tokens"})
            table = table.rename_axis(columns=None).assign(
                model=model, weights=weights, phase=phase
            )
            count, each = (table[size].to_numpy(dtype=float) for size in ("batch", "tokens"))
            rows = served(shape, **_ALONE, batch=count, input_tokens=each)
            new = count * each if phase == "prompt" else count
            yield table, on, forward(rows, on, ForwardPass(count, new, each, phase == "prompt"))
