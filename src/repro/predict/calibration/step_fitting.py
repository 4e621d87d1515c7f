"""Calibration of the step model to training runs of Megatron-LM of 2021."""

from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from repro.catalog.systems.gpus import find_gpu_name
from repro.errors import ReproError
from repro.predict.calibration.fit import (
    MostProbable,
    group_weights,
    held_out,
    most_probable,
    residuals_of,
)
from repro.predict.calibration.interval import ALONE, BETWEEN_NODES, TENSOR_PARALLEL
from repro.predict.network.machine import machine
from repro.predict.parameters import Calibration, Parameters, Prior
from repro.predict.step.iteration import predict_phases
from repro.predict.step.quantities import iteration_times_s
from repro.predict.tables.training import TrainingRows, cluster_like, training_rows
from repro.predict.workload import Array

# Priors allow a factor of 1.5 to 3 either way. Efficiencies have narrower ones, because large
# kernels are near their limit in all published benchmarks.
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
    # Narayanan et al., SC 2021, section 5.9: all-reduces of 384 nodes reach 12.9 TB/s of bisection
    # bandwidth, 67 GB/s per node. NICs carry 200 GB/s, and 192^-0.19 is about 67 / (0.9 x 200).
    "congestion_exponent": Prior(0.19, 0.5),
    "straggler_fraction": Prior(0.01, 0.7),
}
# Bytes from which the latency of an all-reduce is small compared with its transfer.
_LARGE_BYTES = 64e6


def predicted_times_s(part: TrainingRows, parameters: Parameters) -> Array:
    """Predict the time that was measured of each row of a part, in seconds."""
    device = machine(part.cluster, parameters)
    if part.phases is None:
        return iteration_times_s(part.workload, device, parameters)
    predicted = predict_phases(part.workload, device, parameters)
    times: Array = np.sum([getattr(predicted, name) for name in part.phases], axis=0)
    return times


def log_errors(parts: Sequence[TrainingRows], parameters: Parameters) -> pd.Series:
    """Return ln(predicted / measured) of all rows, by their index and in the order of the parts."""
    ratios = [predicted_times_s(part, parameters) / part.iteration_time_s for part in parts]
    index = np.concatenate([part.index for part in parts])
    return pd.Series(np.log(np.concatenate(ratios)), index)


def fit(
    parts: Sequence[TrainingRows], start: Parameters, names: Sequence[str] = tuple(PRIORS)
) -> MostProbable:
    """Fit the parameters `names` to training runs; all others keep their values of `start`.

    Each set of runs weighs as the square root of its number of rows.
    """
    return most_probable(
        lambda values: log_errors(parts, start.model_copy(update=values)).to_numpy(),
        {name: PRIORS[name] for name in names},
        group_weights(pd.Series(np.concatenate([part.sets for part in parts]))),
    )


def fit_ring(rows: pd.DataFrame) -> dict[str, float]:
    """Fit `collective_efficiency` and `ring_ramp` to large all-reduces of A100 on one node."""
    chosen = rows[
        (rows.gpu == "A100")
        & (rows.collective == "all_reduce")
        & (rows.nodes == 1)
        & (rows.size_bytes >= _LARGE_BYTES)
    ]
    ranks = chosen.ranks.to_numpy(dtype=float)
    size, time = chosen.size_bytes.to_numpy(dtype=float), chosen.time_us.to_numpy() * 1e-6
    dgx = cluster_like("A100-SXM-80GB", 8, 1600.0)
    nominal = dgx.topology.levels[-2].link_gbps * 1e9 / 8

    def log_error(logarithms: Array) -> Array:
        efficiency, ramp, latency = np.exp(logarithms)
        bus = efficiency * nominal * ranks / (ranks + ramp)
        predicted = 2 * (ranks - 1) / ranks * size / bus + latency
        error: Array = np.log(predicted / time)
        return error

    efficiency, ramp, _ = np.exp(least_squares(log_error, np.log([0.8, 0.5, 5e-5])).x).tolist()
    return {"collective_efficiency": efficiency, "ring_ramp": ramp}


def cross_validate(rows: pd.DataFrame, groups: pd.Series, start: Parameters) -> pd.Series:
    """Return ln(predicted / measured) of rows by fits without their group.

    `groups` are of the rows to hold out, by their index; all other rows are in every fit.
    """

    def errors_of_fit(seen: Array, held: Array) -> Array:
        fitted = fit(list(training_rows(rows[seen])), start).values
        errors = log_errors(list(training_rows(rows[held])), start.model_copy(update=fitted))
        return errors[rows.index[held]].to_numpy()

    return held_out(groups.reindex(rows.index), errors_of_fit)[groups.index]


def model_sizes(rows: pd.DataFrame) -> pd.Series:
    """Name the model of each row by layers and hidden size.

    Raises
    ------
    ReproError
        All rows are of one model.
    """
    sizes = rows.layers.astype(str) + "x" + rows.hidden.astype(str)
    if sizes.nunique() < 2:
        raise ReproError(
            f"all runs are of one model ({sizes.iloc[0]}); cross-validation takes two model sizes "
            "or more; fix: add runs of another one"
        )
    return sizes.rename("model size")


def calibrate_step(training: pd.DataFrame, collectives: pd.DataFrame, source: str) -> Calibration:
    """Fit the bus bandwidth of rings to collectives, then all other parameters to training runs.

    Parameters
    ----------
    training, collectives : DataFrame
        Rows as `repro.predict.tables.reading.read_rows` reads them.
    source : str
        Names of the files that the rows come from.

    Raises
    ------
    ReproError
        A column or cell is wrong, or the training runs are of one model or of several GPUs.
    """
    parts = list(training_rows(training))
    gpu, *others = sorted({find_gpu_name(str(label)) for label in training.gpu.unique()})
    if others:
        raise ReproError(f"training runs on {gpu}, {', '.join(others)}; calibrate one at a time")
    medians = {name: prior.median for name, prior in PRIORS.items()}
    start = Parameters(**medians, **fit_ring(collectives))
    found = fit(parts, start)
    errors = cross_validate(training, model_sizes(training), start).to_numpy(dtype=float)
    parallel = training.tp.to_numpy() > 1
    residuals = {
        # A regime without runs has the residuals of all runs.
        ALONE: residuals_of(errors[~parallel] if (~parallel).any() else errors),
        TENSOR_PARALLEL: residuals_of(errors[parallel] if parallel.any() else errors),
    }
    between = training[training.gpus > training.gpus_per_node]
    counts = between.gpus.nunique()
    if counts > 1:
        # All runs between nodes on equally many GPUs share one error.
        errors = cross_validate(training, between.gpus, start).to_numpy(dtype=float)
        residuals[BETWEEN_NODES] = residuals_of(errors, groups=counts)
    return Calibration(
        source=source,
        date=date.today().isoformat(),
        gpu=gpu,
        parameters=start.model_copy(update=found.values),
        fitted=tuple(found.values),
        covariance=tuple(tuple(row) for row in found.covariance.tolist()),
        residuals=residuals,
    )
