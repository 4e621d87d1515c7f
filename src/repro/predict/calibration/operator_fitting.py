"""Calibration of operator costs to measured operators, with some shapes held out at a time."""

import numpy as np
import pandas as pd
from tqdm import tqdm

from repro.catalog.systems.gpus import Gpu, find_gpu_name, gpu
from repro.predict.calibration.fit import held_out, most_probable, residuals_of
from repro.predict.operators.measured import (
    KINDS,
    MEASURED,
    MeasuredOperator,
    interpolator,
    rates,
    sizes,
    variants,
)
from repro.predict.parameters import Prior
from repro.predict.workload import Array

# Medians of costs by kind of operator. Their deviation is wide, for costs that some tables do not
# show.
_MEDIANS: dict[str, dict[str, float]] = {
    "gemm": {
        "efficiency": 0.8,
        "edge_loss": 0.3,
        "wave_loss": 0.5,
        "ramp_s": 3e-7,
        "split_depth": 512.0,
        "memory_efficiency": 0.8,
        "launch_s": 2.5e-6,
        "cast_s": 1.5e-6,
    },
    "attention_prefill": {
        "efficiency": 0.6,
        "short_tokens": 300.0,
        "narrow_loss": 0.25,
        "memory_efficiency": 0.7,
        "launch_s": 8e-6,
    },
}
_MEDIANS["attention_decode"] = _MEDIANS["attention_prefill"]
_MEDIANS["nccl"] = {
    "launch_s": 1e-5,
    "hop_s": 1e-6,
    "startup_s": 2e-5,
    "startup_bytes": 1e6,
    "efficiency": 0.8,
    "few_loss": 0.1,
}
# From Hopper on, switches add up all-reduces in half precision. NCCL adds up no bytes there.
_SWITCHED, _SWITCHES = ("hopper", "blackwell"), {"switch_efficiency": 0.6}
_DEVIATION = 1.0
_FOLDS = 5


def fit_costs(kind: str, rows: pd.DataFrame) -> dict[str, float]:
    """Fit costs to rows of one GPU and variant."""
    measured = np.log(rows.time_us.to_numpy(dtype=float) * 1e-6)
    found = most_probable(
        lambda costs: np.log(_time_s(kind, rows, costs)) - measured,
        {name: Prior(median, _DEVIATION) for name, median in _medians(kind, rows).items()},
        scale=0.1,
        loss_of_priors=True,
        diff_step=1e-2,
    )
    return found.values


def _medians(kind: str, rows: pd.DataFrame) -> dict[str, float]:
    """Return the costs of one GPU and variant before any measurement."""
    sums = kind == "nccl" and {"all_reduce", "fp16"} <= {*rows.collective, *rows["dtype"]}
    switched = sums and _device(rows).generation in _SWITCHED
    return _MEDIANS[kind] | (_SWITCHES if switched else {})


def _device(rows: pd.DataFrame) -> Gpu:
    return gpu(find_gpu_name(str(rows.gpu.iloc[0])))


def _time_s(kind: str, rows: pd.DataFrame, costs: dict[str, float]) -> Array:
    device = _device(rows)
    dtype, operator = str(rows.dtype.iloc[0]), KINDS[kind]
    return operator.time_s(rows, dtype, rates(device, kind, dtype), operator.costs(**costs))


def cross_validate(kind: str, rows: pd.DataFrame) -> Array:
    """Return ln(predicted / measured) of rows by costs and measurements of other shapes.

    Each fold holds out entire shapes: all m of one n and k, all lengths of the same heads, all
    rank counts of one size in bytes.
    """
    shape = [name for name in KINDS[kind].axes if name not in ("m", "seq", "kv_len", "ranks")]
    number = rows.groupby(shape).ngroup().to_numpy()
    fold = np.random.default_rng(0).permutation(number.max() + 1)[number] % _FOLDS

    def errors_of_fit(seen: Array, held: Array) -> Array:
        known, unseen = rows[seen], rows[held]
        costs = fit_costs(kind, known)
        missed = np.log(known.time_us * 1e-6 / _time_s(kind, known, costs))
        correction = interpolator(sizes(kind, known), missed.to_numpy())(sizes(kind, unseen))
        predicted = _time_s(kind, unseen, costs) * np.exp(correction)
        errors: Array = np.log(predicted / (unseen.time_us.to_numpy() * 1e-6))
        return errors

    return held_out(pd.Series(fold, rows.index, name="shapes"), errors_of_fit).to_numpy()


def calibrate_operators() -> list[MeasuredOperator]:
    """Fit the costs of all published operators; residuals are of held-out shapes."""
    found = []
    for path in tqdm(sorted(MEASURED.glob("*.csv")), desc="operators", unit="file"):
        kind = next(name for name in KINDS if path.name.startswith(name))
        table = pd.read_csv(path)
        for variant, at in variants(kind, table):
            rows = table.iloc[at]
            costs = fit_costs(kind, rows)
            alone = _time_s(kind, rows, costs) / (rows.time_us * 1e-6)
            residuals = residuals_of(cross_validate(kind, rows))
            found.append(
                MeasuredOperator(
                    kind=kind,
                    gpu=find_gpu_name(str(rows.gpu.iloc[0])),
                    variant=variant,
                    rows=len(rows),
                    mape_pct=float(100 * np.abs(alone - 1).mean()),
                    held_out_mape_pct=residuals.mape_pct,
                    half_width=residuals.half_width,
                    costs=costs,
                )
            )
    return found
