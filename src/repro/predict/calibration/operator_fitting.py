"""Fit the costs of operators to measurements of them, and see how well they do on others."""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares
from tqdm import tqdm

from repro.atomic import replace_text
from repro.catalog.systems.gpus import Gpu, find_gpu_name, read_gpus
from repro.predict.calibration.interval import LEVEL
from repro.predict.calibration.link_fitting import rounded
from repro.predict.operators.measured import (
    KINDS,
    MEASURED,
    MeasuredOperator,
    interpolator,
    rates,
    sizes,
    variants,
)
from repro.predict.workload import Array

# What costs are before any measurement; the fit goes on from there.
_START: dict[str, dict[str, float]] = {
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
_START["attention_decode"] = _START["attention_prefill"]
_START["nccl"] = {
    "launch_s": 1e-5,
    "hop_s": 1e-6,
    "startup_s": 2e-5,
    "startup_bytes": 1e6,
    "efficiency": 0.8,
    "few_loss": 0.1,
}
# All-reduces in half precision, added up in switches from Hopper on; NCCL adds up no bytes there.
_SWITCHED, _SWITCHES = ("hopper", "blackwell"), {"switch_efficiency": 0.6}
# How far logarithms of costs may be from there, for costs that some tables say nothing of.
_DEVIATION = 1.0
# Errors beyond this count less.
_SCALE = 0.1
_FOLDS = 5


def fit_costs(kind: str, rows: pd.DataFrame) -> dict[str, float]:
    """The most probable costs of rows of one GPU and variant."""
    starting = _starting(kind, rows)
    names, start = list(starting), np.log(list(starting.values()))
    measured = np.log(rows.time_us.to_numpy(dtype=float) * 1e-6)

    def residuals(x: Array) -> Array:
        costs = dict(zip(names, np.exp(x).tolist(), strict=True))
        errors = np.log(_time_s(kind, rows, costs)) - measured
        return np.concatenate([errors / _SCALE, (x - start) / _DEVIATION])

    found = least_squares(residuals, start, loss="soft_l1", diff_step=1e-2)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def _starting(kind: str, rows: pd.DataFrame) -> dict[str, float]:
    """What costs of rows of one GPU and variant are before any measurement."""
    sums = kind == "nccl" and {"all_reduce", "fp16"} <= {*rows.collective, *rows["dtype"]}
    switched = sums and _device(rows).generation in _SWITCHED
    return _START[kind] | (_SWITCHES if switched else {})


def _device(rows: pd.DataFrame) -> Gpu:
    return read_gpus()[find_gpu_name(str(rows.gpu.iloc[0]))]


def _time_s(kind: str, rows: pd.DataFrame, costs: dict[str, float]) -> Array:
    device = _device(rows)
    dtype, operator = str(rows.dtype.iloc[0]), KINDS[kind]
    return operator.time_s(rows, dtype, rates(device, kind, dtype), operator.costs(**costs))


def held_out_errors(kind: str, rows: pd.DataFrame) -> Array:
    """ln(predicted / measured) of each row, by costs and measurements of other shapes.

    Shapes are held out together: all m of the same n and k, all lengths of the same heads, all
    ranks of the same bytes.
    """
    shape = [name for name in KINDS[kind].axes if name not in ("m", "seq", "kv_len", "ranks")]
    number = rows.groupby(shape).ngroup().to_numpy()
    fold = np.random.default_rng(0).permutation(number.max() + 1)[number] % _FOLDS
    errors = np.empty(len(rows))
    for held in range(_FOLDS):
        known, unseen = rows[fold != held], rows[fold == held]
        costs = fit_costs(kind, known)
        missed = np.log(known.time_us * 1e-6 / _time_s(kind, known, costs))
        mend = interpolator(sizes(kind, known), missed.to_numpy())(sizes(kind, unseen))
        predicted = _time_s(kind, unseen, costs) * np.exp(mend)
        errors[fold == held] = np.log(predicted / (unseen.time_us * 1e-6))
    return errors


def fit_operators() -> list[MeasuredOperator]:
    """All published operators."""
    found = []
    for path in tqdm(sorted(MEASURED.glob("*.csv")), desc="operators", unit="file"):
        kind = next(name for name in KINDS if path.name.startswith(name))
        table = pd.read_csv(path)
        for variant, at in variants(kind, table):
            rows = table.iloc[at]
            costs = fit_costs(kind, rows)
            alone = _time_s(kind, rows, costs) / (rows.time_us * 1e-6)
            errors = held_out_errors(kind, rows)
            found.append(
                MeasuredOperator(
                    kind=kind,
                    gpu=find_gpu_name(str(rows.gpu.iloc[0])),
                    variant=variant,
                    rows=len(rows),
                    mape_pct=float(100 * np.abs(alone - 1).mean()),
                    held_out_mape_pct=float(100 * np.abs(np.expm1(errors)).mean()),
                    half_width=float(np.quantile(np.abs(errors), LEVEL)),
                    costs=costs,
                )
            )
    return found


def write_operators(found: list[MeasuredOperator], path: Path) -> None:
    """Write them as YAML, with numbers of four digits."""
    lines = "# Written by `repro calibrate`; what each cost is: repro.predict.operators.kernels.\n"
    content = rounded([one.model_dump(mode="json") for one in found])
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=10**6)
    replace_text(path, lines + text)
