"""Comparison of predictions with measurements of one GPU (`repro gpu`)."""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.open_models import DecoderShape, open_model
from repro.catalog.systems.gpus import Gpu, gpu
from repro.predict.fused.parameters import read_fused, sustained_name
from repro.predict.operators.measured import KINDS, on_device_s, product_alone_s
from repro.predict.serving.forward import Part, Pass, forward
from repro.predict.serving.latency import part_s, pass_s
from repro.predict.serving.parameters import engine
from repro.predict.serving.served import Engine, served
from repro.predict.workload import Array
from repro.results.measured import measured_on

# Operators shorter than this are mostly start and end of a kernel.
_LONG_US = 20.0


def operator_errors(measured: xr.Dataset) -> pd.DataFrame:
    """Compare measured operators with predictions from published ones of another GPU.

    Parameters
    ----------
    measured : Dataset
        Result of `repro.experiments.machine.gpu.measure_gpu_operators`.

    Returns
    -------
    DataFrame
        A row per operator: kind, variant, axes, measured_us (median of repeats), predicted_us,
        error_pct, and published_us of the other GPU.
    """
    device, rows = gpu(measured_on(measured)), measured.drop_vars("time_s").to_dataframe()
    rows["measured_us"] = 1e6 * measured["time_s"].median("repeat").values
    parts = [
        found.assign(predicted_us=1e6 * _operator_s(str(kind), str(variant), found, device))
        for (kind, variant), found in rows[rows.kind.isin(list(KINDS))].groupby(["kind", "variant"])
    ]
    table = pd.concat(parts).dropna(subset="measured_us")
    return table.assign(error_pct=100 * (table.predicted_us / table.measured_us - 1))


def _operator_s(kind: str, variant: str, rows: pd.DataFrame, device: Gpu) -> Array:
    if kind == "gemm":
        return product_alone_s(rows, variant, device)
    return on_device_s(kind, rows, ("bf16",), device)


def operator_summary(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarize errors of all operators, and of those longer than 20 microseconds.

    Parameters
    ----------
    errors : DataFrame
        Result of `operator_errors` for some GPUs (`repro.results.measured.by_gpu`).

    Returns
    -------
    DataFrame
        Indexed by gpu, kind and variant: operators and mape_pct of all; long_operators,
        long_mape_pct and long_median_pct (signed) of the long ones.
    """
    rows = {}
    for name, found in errors.groupby(["gpu", "kind", "variant"]):
        long = found[found.measured_us > _LONG_US].error_pct
        rows[name] = {
            "operators": len(found),
            "mape_pct": found.error_pct.abs().mean(),
            "long_operators": len(long),
            "long_mape_pct": long.abs().mean(),
            "long_median_pct": long.median(),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(["gpu", "kind", "variant"])


def memory_rates(measured: xr.Dataset) -> pd.DataFrame:
    """Return the memory rate of additions by the bytes that they move.

    Returns
    -------
    DataFrame
        Columns moved_bytes, measured_us and gbytes_per_s (1e9 B/s).
    """
    added = measured.isel(row=np.flatnonzero(measured["kind"].values == "addition"))
    moved = added["moved_bytes"].values
    seconds = added["time_s"].median("repeat").values
    return pd.DataFrame(
        {"moved_bytes": moved, "measured_us": 1e6 * seconds, "gbytes_per_s": moved / seconds / 1e9}
    )


def sustained_rates(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the sustained rate of matmuls without a pause with their first rate.

    Parameters
    ----------
    measured : Dataset
        Result of `repro.experiments.machine.gpu.measure_gpu_sustained`.

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
    flops = 2 * measured["m"] * measured["n"] * measured["k"] / 1e12
    found = xr.Dataset(
        {
            "burst_tflops": flops / measured["product_s"].isel(replay=0),
            "sustained_tflops": flops / late["product_s"],
            "kept": measured["product_s"].isel(replay=0) / late["product_s"],
            "power_w": late["power_w"],
            "clock_mhz": late["clock_mhz"],
        }
    )
    table = found.to_dataframe().reset_index().drop(columns="product")
    fitted = [known[sustained_name(generation, variant)] for variant in table.variant]
    return table.assign(fitted=fitted)


def decoding_errors(measured: xr.Dataset) -> pd.DataFrame:
    """Compare decoders' forward passes as CUDA graphs with the sum of their predicted operators.

    Parameters
    ----------
    measured : Dataset
        Result of `repro.experiments.machine.gpu_decoding.measure_gpu_decoding`.

    Returns
    -------
    DataFrame
        A row per pass: model, weights (precision), phase (`token` or `prompt`), batch, tokens (in
        the cache or the prompt), measured_ms (median of repeats), host_ms (the same with operators
        launched by the host one after another), predicted_ms and error_pct.
    """
    parts = []
    for table, on, predicted in _passes(measured.median("repeat"), "launch"):
        table = table.rename(columns={"graph": "measured_ms", "host": "host_ms"})
        parts.append(table.assign(predicted_ms=1e3 * pass_s(predicted, on.costs)))
    found = pd.concat(parts, ignore_index=True).dropna(subset="measured_ms")
    return found.assign(error_pct=100 * (found.predicted_ms / found.measured_ms - 1))


def decoding_parts(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the kernels of decoders' forward passes with predictions of the same work.

    Parameters
    ----------
    measured : Dataset
        Result of `repro.experiments.machine.gpu_decoding.measure_gpu_decoding_parts`.

    Returns
    -------
    DataFrame
        A row per pass and part: model, weights, phase, batch, tokens, part, measured_ms and
        predicted_ms.
    """
    parts = []
    for table, on, predicted in _passes(measured, "part"):
        of_parts = dict.fromkeys(measured["part"].values, np.zeros(len(table)))
        for one in predicted:
            of_parts[_part(one)] = of_parts[_part(one)] + 1e3 * part_s(one, on.costs)
        names = [name for name in table if name not in of_parts]
        found = table.melt(names, var_name="part", value_name="measured_ms")
        same = table[names].assign(**of_parts)
        parts.append(found.merge(same.melt(names, var_name="part", value_name="predicted_ms")))
    found = pd.concat(parts, ignore_index=True).dropna(subset="measured_ms")
    return found[(found.measured_ms > 0) | (found.predicted_ms > 0)]


def _part(predicted: Part) -> str:
    """Return the name of a predicted part in `measure_gpu_decoding_parts`."""
    if predicted.kind == "product":
        return "products"
    if predicted.kind == "elements":
        return predicted.name
    return "attention"


def decoding_summary(errors: pd.DataFrame) -> pd.DataFrame:
    """Summarize `decoding_errors` of some GPUs.

    Returns
    -------
    DataFrame
        Indexed by gpu, model, weights and phase: passes, mean_pct and largest_pct of absolute
        errors, and median_pct (signed).
    """
    of = ["gpu", "model", "weights", "phase"]
    errors = errors.assign(absolute_pct=errors.error_pct.abs())
    return errors.groupby(of, sort=False).agg(
        passes=("error_pct", "size"),
        mean_pct=("absolute_pct", "mean"),
        largest_pct=("absolute_pct", "max"),
        median_pct=("error_pct", "median"),
    )


def _passes(measured: xr.Dataset, along: str) -> Iterator[tuple[pd.DataFrame, Engine, list[Part]]]:
    """Yield milliseconds of forward passes, with the engine and predicted operators.

    A table has one column for each value of the dimension `along`.
    """
    device = gpu(measured_on(measured))
    for model, weights in product(measured["model"].values, measured["weights"].values):
        on = engine(device, str(weights), cache="bf16", stack="pytorch")
        of_one = measured.sel(model=model, weights=weights, drop=True)
        for phase, name, batch, tokens in (
            ("token", "output_token_s", "batch", "context"),
            ("prompt", "prompt_s", "prompt_batch", "prompt_tokens"),
        ):
            table = (1e3 * of_one[name]).to_series().unstack(along).reset_index()
            table = table.rename(columns={batch: "batch", tokens: "tokens"})
            table = table.rename_axis(columns=None).assign(
                model=model, weights=weights, phase=phase
            )
            yield table, on, _operators(open_model(str(model)).shape, on, table)


def _operators(shape: DecoderShape, on: Engine, table: pd.DataFrame) -> list[Part]:
    sequences, each = (table[name].to_numpy(dtype=float) for name in ("batch", "tokens"))
    rows = served(shape, tp=1, pp=1, ep=1, batch=sequences, input_tokens=each, output_tokens=1)
    prompt = bool((table.phase == "prompt").all())
    new = sequences * each if prompt else sequences
    return forward(rows, on, Pass(sequences, new, each, prompt))
