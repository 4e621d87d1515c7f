"""Calibration of today's training and serving software, with one model held out at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import find_gpu_name, gpu
from repro.catalog.systems.serving import ServingCosts, read_serving_stacks
from repro.predict.calibration.fit import group_weights, held_out, most_probable, residuals_of
from repro.predict.fused.iteration import iteration_times_s
from repro.predict.fused.parameters import KINDS, FusedCalibration, FusedParameters, kinds
from repro.predict.fused.run import Run
from repro.predict.parameters import Prior
from repro.predict.serving.latency import latency, passes
from repro.predict.serving.parameters import KINDS as KINDS_OF_SERVING
from repro.predict.serving.parameters import ServingFit
from repro.predict.tables.serving import serving_rows
from repro.predict.tables.training import read_runs
from repro.predict.workload import Array

TRAINING_PRIORS: Mapping[str, Prior] = {
    # Matmuls in bursts draw more power than a GPU may draw for long.
    "sustained ampere bf16": Prior(0.9, 0.1),
    "sustained hopper bf16": Prior(0.85, 0.1),
    "sustained hopper fp8": Prior(0.8, 0.15),
    "sustained blackwell bf16": Prior(0.85, 0.1),
    "sustained blackwell fp8": Prior(0.8, 0.15),
    "sustained blackwell nvfp4": Prior(0.6, 0.3),
    "sustained blackwell-ultra bf16": Prior(0.95, 0.1),
    "sustained blackwell-ultra fp8": Prior(0.9, 0.15),
    "sustained blackwell-ultra nvfp4": Prior(0.7, 0.3),
    # FlashAttention-2 reaches 35 % of an H100's peak where FlashAttention-3 reaches 60 to 75
    # (Shah et al., 2024, abstract).
    "attention flash2 ampere": Prior(1.0, 0.1),
    "attention flash2 hopper": Prior(0.55, 0.2),
    "attention vendor hopper": Prior(1.0, 0.1),
    "attention vendor blackwell": Prior(1.0, 0.15),
    # Twice as many exponentials a cycle (NVIDIA, Blackwell Ultra, 2025).
    "attention vendor blackwell-ultra": Prior(1.2, 0.15),
    # No fused kernel knew sinks when these runs were published.
    "sinks": Prior(3.0, 0.7),
    # The same paper: the backward pass reaches 0.7 to 0.8 of the forward pass's rate.
    "attention_backward": Prior(0.75, 0.1),
    "memory_efficiency": Prior(0.85, 0.07),
    "traffic megatron-core": Prior(1.0, 0.2),
    "traffic megatron-core-graphs": Prior(1.0, 0.3),
    "traffic pytorch-fsdp": Prior(1.5, 0.3),
    "traffic maxtext": Prior(1.0, 0.3),
    "link_efficiency": Prior(0.8, 0.07),
    "fabric_efficiency": Prior(0.9, 0.07),
    # NCCL's latency between nodes is 3 to 6 us for each step.
    "ring_step_s": Prior(3e-6, 0.7),
    # NCCL's channels and the copies of userbuffers take 16 to 20 of 108 to 148 multiprocessors.
    "reserved": Prior(0.13, 0.3),
    "launch_s": Prior(5e-6, 0.3),
    "exchange megatron-core": Prior(5e-5, 0.7),
    "exchange megatron-core-2024": Prior(5e-4, 1.0),
    # All ranks send small messages to all others at the same time.
    "exchange_efficiency": Prior(0.6, 0.3),
    "straggler_fraction": Prior(0.002, 1.0),
}
SERVING_PRIORS: Mapping[str, Prior] = {
    # Without a CUDA graph, a dependent kernel starts 1 to 5 us after the end of the one before.
    "gap_s": Prior(3e-6, 0.7),
    "arrival_s": Prior(1e-5, 1.0),
    "hop_s": Prior(1e-5, 0.7),
    "step_s": Prior(5e-4, 1.0),
    "sequence_s": Prior(3e-5, 1.0),
    # Matmuls use the library's fastest kernel for each shape, chosen beforehand.
    "products": Prior(1.0, 0.07),
    "reading": Prior(0.8, 0.15),
    # Biases and transpositions are separate kernels.
    "traffic": Prior(2.0, 0.4),
}
# Costs of engines that fill passes with prompts and tokens of any sequences.
ENGINE_PRIORS: Mapping[str, Prior] = {
    # A layer's kernels are one CUDA graph, in which a kernel starts as the one before ends.
    "gap_s": Prior(5e-7, 0.7),
    "arrival_s": Prior(2e-6, 0.7),
    "step_s": Prior(5e-4, 0.7),
    "sequence_s": Prior(5e-6, 0.7),
    "products": Prior(1.0, 0.1),
    "reading": Prior(0.8, 0.15),
    "traffic": Prior(1.2, 0.3),
    "experts": Prior(1.2, 0.2),
    # Activations are quantized before each product; later releases fuse that.
    "fp4": Prior(1.15, 0.1),
    "routing_s": Prior(1e-5, 1.0),
    "collectives": Prior(1.1, 0.2),
    "straggling": Prior(0.02, 0.7),
    "apart": Prior(0.1, 0.7),
    # About twice the time in which one host samples a token.
    "relay_s": Prior(1e-5, 1.0),
}


@dataclass(frozen=True)
class Fitting:
    """Measured rows of a table, and the model that is fitted to them.

    Attributes
    ----------
    priors
        Prior of each parameter.
    log_errors
        Function from values by name and chosen rows to ln(predicted / measured) of these rows.
    weights
        Function from chosen rows to their weights.
    """

    priors: Mapping[str, Prior]
    log_errors: Callable[[Mapping[str, float], Array | slice], Array]
    weights: Callable[[Array | slice], Array]

    def fit(self, rows: Array | slice = slice(None)) -> dict[str, float]:
        """Fit parameters to chosen rows, by default to all."""
        found = most_probable(
            lambda values: self.log_errors(values, rows),
            self.priors,
            self.weights(rows),
            diff_step=1e-3,
        )
        return found.values

    def cross_validate(self, groups: pd.Series) -> Array:
        """Return ln(predicted / measured) of every row by a fit without its group."""
        return held_out(groups, lambda seen, held: self.log_errors(self.fit(seen), held)).to_numpy()


def training_fitting(table: pd.DataFrame) -> Fitting:
    """Prepare the fit of the fused model to iteration times of runs."""
    measured_s = table.iteration_time_s.to_numpy(dtype=float)
    return fitting_of_runs(read_runs(table), measured_s, TRAINING_PRIORS, model_weights(table))


def fitting_of_runs(
    run: Run, measured_s: Array, priors: Mapping[str, Prior], weights: Array
) -> Fitting:
    """Prepare the fit of the fused model to the measured iteration times of runs."""

    def log_errors(values: Mapping[str, float], rows: Array | slice) -> Array:
        predicted_s = iteration_times_s(run.rows(rows), parameters_of(values))
        errors: Array = np.log(predicted_s / measured_s[rows])
        return errors

    return Fitting(priors, log_errors, lambda rows: weights[rows])


def parameters_of(values: Mapping[str, float]) -> FusedParameters:
    """Return parameters from values by the names of `TRAINING_PRIORS`."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        field, _, rest = name.partition(" ")
        if rest:
            nested.setdefault(field, {})[rest] = float(value)
        else:
            nested[field] = float(value)
    return FusedParameters(**nested)


def model_weights(table: pd.DataFrame) -> Array:
    """Return weights of runs, 1 on average: a model weighs as the root of its configurations.

    Runs of one `dup_group` repeat one configuration.
    """
    groups = table["dup_group"] if "dup_group" in table.columns else table.index.to_series()
    copies = groups.groupby(groups).transform("size").to_numpy(dtype=float)
    weights = group_weights(table["model"], copies)
    relative: Array = weights / weights.mean()
    return relative


def calibrate_fused(table: pd.DataFrame, source: str) -> FusedCalibration:
    """Fit parameters to published runs; residuals are of held-out models.

    Runs on GPUs of generations without parameters of their own are left out.
    """
    fitted = {name.split()[1] for name in TRAINING_PRIORS if name.startswith("sustained ")}
    of_generation = [gpu(find_gpu_name(str(label))).generation for label in table.gpu]
    table = table[[one in fitted for one in of_generation]].reset_index(drop=True)
    fitting, of_kind = training_fitting(table), kinds(read_runs(table))
    errors = fitting.cross_validate(table["model"])
    return FusedCalibration(
        source=source,
        date=date.today().isoformat(),
        gpus=tuple(sorted({find_gpu_name(str(label)) for label in table.gpu})),
        parameters=parameters_of(fitting.fit()),
        residuals={
            name: residuals_of(errors[of_kind == number]) for number, name in enumerate(KINDS)
        },
    )


def serving_fitting(table: pd.DataFrame) -> Fitting:
    """Prepare the fit of serving software's costs to latencies.

    A model weighs as the root of its number of rows.
    """
    # Operators of rows do not depend on fitted costs.
    known = [(part, passes(part.rows, part.engine)) for part in serving_rows(table)]
    models = model_names(table)
    steady = all(part.engine.stack.steady_pipeline for part, _ in known)

    def log_errors(values: Mapping[str, float], rows: Array | slice) -> Array:
        costs = ServingCosts(**values)
        parts = []
        for part, operators in known:
            predicted_s = latency(operators, replace(part.engine, costs=costs)).total_s
            parts.append(pd.Series(np.log(predicted_s / part.total_s), part.index))
        return pd.concat(parts)[table.index].to_numpy()[rows]

    def weights(rows: Array | slice) -> Array:
        found = group_weights(models[rows])
        relative: Array = found / found.mean()
        return relative

    return Fitting(ENGINE_PRIORS if steady else SERVING_PRIORS, log_errors, weights)


def model_names(table: pd.DataFrame) -> pd.Series:
    """Name the model of each row by layers and hidden size."""
    names = [
        pd.Series([f"{layers:.0f}x{hidden:.0f}" for layers, hidden in sizes], part.index)
        for part in serving_rows(table)
        for sizes in [zip(part.rows.layers, part.rows.hidden, strict=True)]
    ]
    return pd.concat(names)[table.index].rename("model")


def calibrate_serving(table: pd.DataFrame, source: str) -> dict[str, ServingFit]:
    """Fit costs of each software of a table that is calibrated.

    Residuals are of held-out models, GPUs and sets, each where the software has several of them.
    """
    found, parts = {}, list(serving_rows(table))
    for name, stack in read_serving_stacks().items():
        own = [part for part in parts if part.engine.stack == stack]
        if stack.costs is not None or stack.like or not own:
            continue
        rows = table.loc[np.concatenate([part.index for part in own])]
        mixture = pd.concat([pd.Series(part.rows.mixture > 0, part.index) for part in own])
        fitting, of_mixtures = serving_fitting(rows), mixture[rows.index].to_numpy()
        groups = [one for one in (model_names(rows), rows.gpu, rows.set) if one.nunique() > 1]
        errors = np.stack([fitting.cross_validate(one) for one in groups])
        by_kind = {kind: errors[:, of_mixtures == at] for at, kind in enumerate(KINDS_OF_SERVING)}
        found[name] = ServingFit(
            source=source,
            date=date.today().isoformat(),
            gpus=tuple(sorted({find_gpu_name(str(label)) for label in rows.gpu})),
            costs=ServingCosts(**fitting.fit()),
            residuals={
                kind: residuals_of(one.ravel()) for kind, one in by_kind.items() if one.size
            },
        )
    return found
