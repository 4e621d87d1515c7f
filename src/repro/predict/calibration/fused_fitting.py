"""Fit the model of fused steps to published runs; judge it on models that a fit has not seen."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from tqdm import tqdm

from repro.atomic import replace_text
from repro.catalog.systems.gpus import find_gpu_name
from repro.predict.calibration.calibrating import residuals_of
from repro.predict.calibration.link_fitting import rounded
from repro.predict.calibration.robust import most_probable
from repro.predict.fused.iteration import iteration_times_s
from repro.predict.fused.parameters import (
    KINDS,
    FusedCalibration,
    FusedParameters,
    kinds,
)
from repro.predict.fused.run import Run
from repro.predict.parameters import Prior
from repro.predict.tables.fused_training import read_runs
from repro.predict.workload import Array

PRIORS: Mapping[str, Prior] = {
    # Products in bursts draw more power than a GPU may for long.
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
    # The same paper: 0.7 to 0.8 of the forward pass's rate.
    "attention_backward": Prior(0.75, 0.1),
    "memory_efficiency": Prior(0.85, 0.07),
    "traffic megatron-core": Prior(1.0, 0.2),
    "traffic pytorch-fsdp": Prior(1.5, 0.3),
    "traffic maxtext": Prior(1.0, 0.3),
    "link_efficiency": Prior(0.8, 0.07),
    "fabric_efficiency": Prior(0.9, 0.07),
    # 16 to 20 of 108 to 148 (NCCL's channels, userbuffers' copies).
    "reserved": Prior(0.13, 0.3),
    "launch_s": Prior(5e-6, 0.3),
    "exchange megatron-core": Prior(5e-5, 0.7),
    "exchange megatron-core-2024": Prior(5e-4, 1.0),
    # All ranks send to all others at the same time, in small pieces.
    "exchange_efficiency": Prior(0.6, 0.3),
    "straggler_fraction": Prior(0.002, 1.0),
}


def parameters_of(values: Mapping[str, float]) -> FusedParameters:
    """Parameters by the names of `PRIORS`."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        field, _, rest = name.partition(" ")
        if rest:
            nested.setdefault(field, {})[rest] = float(value)
        else:
            nested[field] = float(value)
    return FusedParameters(**nested)


def fit(run: Run, measured_s: Array, weights: Array) -> FusedParameters:
    """The most probable parameters, by least squares over logarithms."""
    found = most_probable(
        lambda values: np.log(iteration_times_s(run, parameters_of(values)) / measured_s),
        weights,
        PRIORS,
        diff_step=1e-3,
    )
    return parameters_of(found.values)


def model_weights(table: pd.DataFrame) -> Array:
    """Re-measurements of one configuration weigh as one, and a model's rows as their root."""
    groups = table["dup_group"] if "dup_group" in table.columns else table.index.to_series()
    alike = table.groupby(groups)["gpus"].transform("size").to_numpy(dtype=float)
    of_model = (1 / pd.Series(alike, index=table.index)).groupby(table["model"]).transform("sum")
    weights = 1 / alike / np.sqrt(of_model.to_numpy(dtype=float))
    relative: Array = weights / weights.mean()
    return relative


def cross_validate(table: pd.DataFrame, by: pd.Series) -> Array:
    """ln(predicted / measured) of every row, by fits that have seen no row of its group."""
    run, measured = read_runs(table), table.iteration_time_s.to_numpy(dtype=float)
    weights, errors = model_weights(table), np.full(len(table), np.nan)
    for group in tqdm(by.unique(), desc=f"cross-validation by {by.name}", unit="group"):
        held = (by == group).to_numpy()
        fitted = fit(run.rows(~held), measured[~held], weights[~held])
        errors[held] = np.log(iteration_times_s(run.rows(held), fitted) / measured[held])
    return errors


def calibrate_fused(table: pd.DataFrame, source: str) -> FusedCalibration:
    """Fit published runs, and hold out one model after the other for the residuals."""
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


def write_fused(value: FusedCalibration, path: Path) -> None:
    """Write a calibration as YAML with numbers of four digits."""
    lines = "# Written by `repro calibrate`; what each is: repro.predict.fused.parameters.\n"
    text = yaml.safe_dump(rounded(value.model_dump(mode="json")), sort_keys=False)
    replace_text(path, lines + text)
