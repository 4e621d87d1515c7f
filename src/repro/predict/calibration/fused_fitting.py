"""Calibration of the fused model to published runs, with one model held out at a time."""

from collections.abc import Mapping
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import find_gpu_name
from repro.predict.calibration.fit import (
    group_weights,
    held_out,
    most_probable,
    residuals_of,
)
from repro.predict.fused.iteration import iteration_times_s
from repro.predict.fused.parameters import KINDS, FusedCalibration, FusedParameters, kinds
from repro.predict.fused.run import Run
from repro.predict.parameters import Prior
from repro.predict.tables.training import read_runs
from repro.predict.workload import Array

PRIORS: Mapping[str, Prior] = {
    # Matmuls in bursts draw more power than a GPU may draw for long.
    "sustained ampere bf16": Prior(0.9, 0.1),
    "sustained hopper bf16": Prior(0.85, 0.1),
    "sustained hopper fp8": Prior(0.8, 0.15),
    "sustained blackwell bf16": Prior(0.85, 0.1),
    "sustained blackwell fp8": Prior(0.8, 0.15),
    "sustained blackwell nvfp4": Prior(0.6, 0.3),
    # FlashAttention-2 reaches 35 % of an H100's peak where FlashAttention-3 reaches 60 to 75
    # (Shah et al., 2024, abstract).
    "attention flash2 ampere": Prior(1.0, 0.1),
    "attention flash2 hopper": Prior(0.55, 0.2),
    "attention vendor hopper": Prior(1.0, 0.1),
    "attention vendor blackwell": Prior(1.0, 0.15),
    # The same paper: the backward pass reaches 0.7 to 0.8 of the forward pass's rate.
    "attention_backward": Prior(0.75, 0.1),
    "memory_efficiency": Prior(0.85, 0.07),
    "traffic megatron-core": Prior(1.0, 0.2),
    "traffic pytorch-fsdp": Prior(1.5, 0.3),
    "traffic maxtext": Prior(1.0, 0.3),
    "link_efficiency": Prior(0.8, 0.07),
    "fabric_efficiency": Prior(0.9, 0.07),
    # NCCL's channels and the copies of userbuffers take 16 to 20 of 108 to 148 multiprocessors.
    "reserved": Prior(0.13, 0.3),
    "launch_s": Prior(5e-6, 0.3),
    "exchange megatron-core": Prior(5e-5, 0.7),
    "exchange megatron-core-2024": Prior(5e-4, 1.0),
    # All ranks send small messages to all others at the same time.
    "exchange_efficiency": Prior(0.6, 0.3),
    "straggler_fraction": Prior(0.002, 1.0),
}


def parameters_of(values: Mapping[str, float]) -> FusedParameters:
    """Return parameters from values by the names of `PRIORS`."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        field, _, rest = name.partition(" ")
        if rest:
            nested.setdefault(field, {})[rest] = float(value)
        else:
            nested[field] = float(value)
    return FusedParameters(**nested)


def fit(run: Run, measured_s: Array, weights: Array) -> FusedParameters:
    """Fit parameters to iteration times of runs."""
    found = most_probable(
        lambda values: np.log(iteration_times_s(run, parameters_of(values)) / measured_s),
        PRIORS,
        weights,
        diff_step=1e-3,
    )
    return parameters_of(found.values)


def model_weights(table: pd.DataFrame) -> Array:
    """Return weights of runs, 1 on average: a model weighs as the root of its configurations.

    Runs of one `dup_group` repeat one configuration.
    """
    groups = table["dup_group"] if "dup_group" in table.columns else table.index.to_series()
    copies = groups.groupby(groups).transform("size").to_numpy(dtype=float)
    weights = group_weights(table["model"], copies)
    relative: Array = weights / weights.mean()
    return relative


def cross_validate(table: pd.DataFrame, by: pd.Series) -> Array:
    """Return ln(predicted / measured) of every run by a fit without its group."""
    run, measured_s = read_runs(table), table.iteration_time_s.to_numpy(dtype=float)
    weights = model_weights(table)

    def errors_of_fit(seen: Array, held: Array) -> Array:
        fitted = fit(run.rows(seen), measured_s[seen], weights[seen])
        errors: Array = np.log(iteration_times_s(run.rows(held), fitted) / measured_s[held])
        return errors

    return held_out(by, errors_of_fit).to_numpy()


def calibrate_fused(table: pd.DataFrame, source: str) -> FusedCalibration:
    """Fit parameters to published runs; residuals are of held-out models."""
    run = read_runs(table)
    errors, of_kind = cross_validate(table, table["model"]), kinds(run)
    return FusedCalibration(
        source=source,
        date=date.today().isoformat(),
        gpus=tuple(sorted({find_gpu_name(str(label)) for label in table.gpu})),
        parameters=fit(run, table.iteration_time_s.to_numpy(dtype=float), model_weights(table)),
        residuals={
            name: residuals_of(errors[of_kind == number]) for number, name in enumerate(KINDS)
        },
    )
