"""Calibrate the performance model: the most probable parameters given measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from tqdm import tqdm

from repro.errors import ReproError
from repro.predict.calibration.robust import most_probable
from repro.predict.network.machine import machine
from repro.predict.parameters import Parameters, Prior
from repro.predict.step.iteration import predict_phases
from repro.predict.step.quantities import iteration_times_s
from repro.predict.tables.unfused_training import TrainingRows, training_rows
from repro.predict.workload import Array

# Wide: a factor of 1.5 to 3 either way. Efficiencies are narrower, because they are near their
# limit for large kernels by all published benchmarks.
PRIORS: Mapping[str, Prior] = {
    "gemm_efficiency": Prior(0.85, 0.1),
    "wave_loss": Prior(0.5, 0.5),
    "attention_gemm_efficiency": Prior(0.45, 0.2),
    "logits_gemm_efficiency": Prior(0.75, 0.1),
    "logits_gemm_efficiency_alone": Prior(0.5, 0.5),
    "memory_efficiency": Prior(0.88, 0.07),
    "attention_passes": Prior(1.4, 0.2),
    "kernel_s": Prior(5e-6, 0.5),
    "host_layer_s": Prior(1e-3, 0.5),
    "host_collective_s": Prior(5e-5, 0.7),
    "host_unfused_softmax_s": Prior(3e-4, 0.7),
    "host_micro_batch_s": Prior(1e-3, 0.7),
    "host_iteration_s": Prior(1e-3, 1.0),
    "host_optimizer_layer_s": Prior(1e-4, 1.0),
    "fabric_efficiency": Prior(0.85, 0.05),
    "collective_latency_s": Prior(4e-5, 0.5),
    "latency_exponent": Prior(1.0, 0.4),
    "hop_s": Prior(5e-5, 0.7),
    # Narayanan et al., SC 2021, section 5.9: all-reduces of 384 nodes get 12.9 TB/s of bisection,
    # 67 GB/s a node, where NICs carry 200: a third, and 192^-0.19 is a third of nine tenths.
    "congestion_exponent": Prior(0.19, 0.5),
    "straggler_fraction": Prior(0.01, 0.7),
}


@dataclass(frozen=True)
class Fit:
    """Fitted parameters and the covariance of the logarithms of those in `names`."""

    parameters: Parameters
    names: tuple[str, ...]
    covariance: Array


def predicted_times_s(part: TrainingRows, parameters: Parameters) -> Array:
    """What the model says of the times that the rows of a part have, in seconds."""
    device = machine(part.cluster, parameters)
    if part.phases is None:
        return iteration_times_s(part.workload, device, parameters)
    predicted = predict_phases(part.workload, device, parameters)
    times: Array = np.sum([getattr(predicted, name) for name in part.phases], axis=0)
    return times


def log_errors(parts: Sequence[TrainingRows], parameters: Parameters) -> Array:
    """ln(predicted / measured) of all rows, in the order of the parts."""
    return np.concatenate(
        [np.log(predicted_times_s(part, parameters) / part.iteration_time_s) for part in parts]
    )


def fit(rows: pd.DataFrame, start: Parameters, names: Sequence[str] = tuple(PRIORS)) -> Fit:
    """The most probable parameters, by least squares over logarithms.

    Parameters
    ----------
    rows : DataFrame
        Training measurements. Each `set` weighs as the square root of its number of rows.
    start : Parameters
        Values of what is not fitted.
    names : sequence of str
        What is fitted, all of which have priors.
    """
    parts = list(training_rows(rows))
    sizes = rows.groupby("set").size()
    weight_of = (sizes.sum() / sizes) ** 0.5
    weights = np.concatenate(
        [weight_of[rows.set[part.index]].to_numpy(dtype=float) for part in parts]
    )
    found = most_probable(
        lambda values: log_errors(parts, start.model_copy(update=values)),
        weights,
        {name: PRIORS[name] for name in names},
    )
    return Fit(start.model_copy(update=found.values), tuple(names), found.covariance)


def cross_validate(rows: pd.DataFrame, groups: pd.Series, start: Parameters) -> pd.Series:
    """ln(predicted / measured), by the rows' index, by fits that have seen no row of their group.

    Parameters
    ----------
    groups : Series
        Of the rows that are held out, by their index; all others are in every fit.
    """
    errors = pd.Series(np.nan, index=groups.index)
    for group in tqdm(groups.unique(), desc=f"cross-validation by {groups.name}", unit="group"):
        held = rows.loc[groups.index[groups == group]]
        fitted = fit(rows.drop(held.index), start)
        parts = list(training_rows(held))
        index = np.concatenate([part.index.to_numpy() for part in parts])
        errors.loc[index] = log_errors(parts, fitted.parameters)
    return errors


def model_sizes(rows: pd.DataFrame) -> pd.Series:
    """The groups of models with as many layers, as wide and of one family.

    Raises
    ------
    ReproError
        All rows have the same.
    """
    sizes = rows.layers.astype(str) + "x" + rows.hidden.astype(str)
    if "family" in rows.columns:
        sizes += " " + rows.family.fillna("").astype(str)
    if sizes.nunique() < 2:
        raise ReproError(
            f"all runs are of one model ({sizes.iloc[0]}); calibrating takes two sizes or more, "
            "to be judged by those that a fit has not seen"
        )
    return sizes.rename("model size")
