"""One measured GPU against the step model: fits to half of its runs and to another GPU's.

The parameters that one GPU shows (`ONE_GPU`) are fitted as in
`repro.predict.calibration.step_fitting`. All others keep their values of the cluster's calibration.
The memory model has no parameters to fit.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.systems.clusters import Cluster
from repro.errors import ReproError
from repro.predict.calibration.step_fitting import fit, predicted_times_s
from repro.predict.memory import WIDTHS
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.layers import TORCH_SOFTMAX
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.tables.training import TrainingRows
from repro.predict.workload import Array, Plan, Workload, workload
from repro.results.measured import measured_on
from repro.results.metrics import draw_sample, estimate, phase_time_s

# Parameters that decide how long one GPU computes and steps the optimizer.
ONE_GPU = (
    "gemm_efficiency",
    "wave_loss",
    "attention_gemm_efficiency",
    "logits_gemm_efficiency_alone",
    "memory_efficiency",
    "attention_passes",
    "kernel_s",
    "host_layer_s",
    "host_unfused_softmax_s",
    "host_optimizer_layer_s",
)
# Phases of `repro.predict.step.iteration` in which the GPU computes.
_COMPUTING = ("forward_compute", "backward_compute", "recompute")
FITTED, HELD_OUT, OUT_OF_MEMORY = "fitted", "held out", "out of memory"
# The host's launches decide the time of the smallest micro batch. The GPU decides times that are
# longer by this factor.
_GPU_BOUND = 1.5


def compare_halves(measured: xr.Dataset, cluster: Cluster) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit the model to every other micro batch of each model, and predict all.

    Micro batches of a model, in ascending order, go to the two halves alternately. Every other
    model begins with the other half. Each half thus has small and large micro batches.

    Parameters
    ----------
    measured : Dataset
        Measurements (`repro.results.schema`) with runs on one GPU. The first source and protocol
        count.
    cluster : Cluster
        A cluster with the measured GPU. Its calibration gives the parameters that are not fitted.

    Returns
    -------
    configurations : DataFrame
        A row per model and micro batch that was tried:

        model, micro_batch_size
            The configuration.
        half
            `FITTED`, `HELD_OUT` or, without times, `OUT_OF_MEMORY`.
        measured_s, low_s, high_s
            Forward and backward computing of an iteration, and its 95 % interval over iterations.
        predicted_s, error_pct
            Prediction with the parameters fitted to one half, and its error.
        transferred_s, transferred_error_pct
            The same before any fit, with the cluster's calibration. It was made on another GPU and
            with Apex's fused softmax.
        counted_s, counted_error_pct
            The same with the traffic of PyTorch's softmax (`TORCH_SOFTMAX`), which ran here.
        optimizer_s, predicted_optimizer_s
            Adam's step.
        measured_peak_bytes, predicted_peak_bytes, memory_error_pct
            Peak memory of tensors, without the framework's own. The prediction is for the software
            that ran, without dropout and with PyTorch's softmax.
        predicted_full
            Whether the predicted peak exceeds the GPU's memory.
    parameters : DataFrame
        Indexed by parameter: `before` (of the cluster's calibration) and `fitted` in the units of
        `Parameters`, and `deviation_pct`, one standard deviation of `fitted`.

    Raises
    ------
    ReproError
        Nothing ran on one GPU, the GPU is not the cluster's, or a model ran with a single micro
        batch.
    """
    runs = _with_halves(_configurations(measured, cluster))
    before = calibration(cluster.calibration).parameters
    found = fit(list(_parts(runs[runs.half == FITTED], cluster)), before, ONE_GPU)
    parameters = pd.DataFrame(
        {
            "before": [getattr(before, name) for name in ONE_GPU],
            "fitted": found.values,
            "deviation_pct": 100 * np.sqrt(np.diag(found.covariance)),
        },
        index=pd.Index(ONE_GPU, name="parameter"),
    )
    fitted = before.model_copy(update=found.values)
    return _with_predictions(runs, cluster, fitted, before), parameters


def summary(configurations: pd.DataFrame) -> pd.DataFrame:
    """Summarize the absolute errors of either half, in percent of the measured value.

    Returns
    -------
    DataFrame
        Indexed by quantity and half: number of configurations, median_pct and largest_pct.
        `transferred` marks predictions before any fit.
    """
    quantities = {
        "error_pct": "forward + backward",
        "transferred_error_pct": "forward + backward, transferred",
        "counted_error_pct": "forward + backward, transferred, torch's softmax",
        "memory_error_pct": "peak memory",
    }
    ran = configurations[configurations.half != OUT_OF_MEMORY].rename(columns=quantities)
    errors = ran.melt("half", list(quantities.values()), "quantity")
    return _absolute(errors.value, [errors.quantity, errors.half])


def _absolute(errors: pd.Series, by: list[pd.Series]) -> pd.DataFrame:
    """Count errors, and return the median and the largest of their absolute values."""
    found = errors.abs().groupby(by, sort=False).agg(["size", "median", "max"])
    return found.set_axis(["configurations", "median_pct", "largest_pct"], axis=1)


def memory_limits(configurations: pd.DataFrame) -> pd.DataFrame:
    """Return the largest micro batch of each model that fits into memory.

    Returns
    -------
    DataFrame
        Indexed by model: `measured` and `predicted`, the largest tried micro batch that fits
        (missing: none); `full`, the smallest that did not fit when measured (missing: all did);
        `agrees`, whether the first two are equal.
    """
    limits = {
        name: {
            "measured": tried.loc[tried.half != OUT_OF_MEMORY, "micro_batch_size"].max(),
            "predicted": tried.loc[~tried.predicted_full, "micro_batch_size"].max(),
            "full": tried.loc[tried.half == OUT_OF_MEMORY, "micro_batch_size"].min(),
        }
        for name, tried in configurations.groupby("model", sort=False)
    }
    table = pd.DataFrame.from_dict(limits, orient="index").astype("Int64")
    return table.assign(agrees=(table.measured == table.predicted).fillna(False))


def carried_over(
    fitted_to: xr.Dataset, fitted_on: Cluster, judged: xr.Dataset, judged_on: Cluster
) -> pd.DataFrame:
    """Fit the model to all measurements of one GPU, and predict another GPU by its data sheet.

    The fit includes the host's launch times, which belong to the machine and not to the GPU.

    Returns
    -------
    DataFrame
        A row per model and micro batch that ran: model, micro_batch_size, measured_s, predicted_s,
        error_pct, and gpu_bound, whether the GPU and not the host decides the time.

    Raises
    ------
    ReproError
        Nothing ran on one GPU, or the GPU is not that of its cluster.
    """
    seen, table = (
        _configurations(measured, cluster).query("half != @OUT_OF_MEMORY").reset_index(drop=True)
        for measured, cluster in ((fitted_to, fitted_on), (judged, judged_on))
    )
    before = calibration(fitted_on.calibration).parameters
    found = fit(list(_parts(seen, fitted_on)), before, ONE_GPU)
    predicted_s, _ = _times_s(table, judged_on, before.model_copy(update=found.values))
    least_s = table.groupby("model").measured_s.transform("first")
    return table.assign(
        predicted_s=predicted_s,
        error_pct=100 * (predicted_s / table.measured_s - 1),
        gpu_bound=table.measured_s > _GPU_BOUND * least_s,
    )[["model", "micro_batch_size", "measured_s", "predicted_s", "error_pct", "gpu_bound"]]


def carried_summary(carried: pd.DataFrame) -> pd.DataFrame:
    """Summarize the absolute errors of `carried_over`.

    Returns
    -------
    DataFrame
        Indexed by gpu_bound: number of configurations, median_pct and largest_pct.
    """
    return _absolute(carried.error_pct, [carried.gpu_bound])


def _configurations(measured: xr.Dataset, cluster: Cluster) -> pd.DataFrame:
    """Return one row per configuration of one GPU that was tried; `half` is empty where it ran."""
    if "iteration_time_s" not in measured or 1 not in measured["gpus"]:
        raise ReproError("no measurements of one GPU: run source `cluster` where there is one")
    if (device := measured_on(measured)) != cluster.gpu:
        raise ReproError(
            f"measured on {device}, which is no {cluster.gpu}; name a cluster with that GPU as the "
            "experiment's (params/one_gpu.yaml)"
        )
    one = measured.sel(gpus=1).isel(source=0, protocol=0)
    rows: list[dict[str, object]] = []
    for name, size in product(one["model"].values, sorted(one["micro_batch_size"].values)):
        run = one.sel(model=name, micro_batch_size=size)
        full = float(run["out_of_memory"])
        key = {"model": str(name), "micro_batch_size": int(size)}
        if full == 1:
            rows.append(key | {"half": OUT_OF_MEMORY})
        if full != 0:
            continue
        # Other configurations may have had more iterations.
        run = run.dropna("iteration", how="all", subset=["iteration_time_s"])
        computing = estimate(
            draw_sample(run), lambda r: phase_time_s(r, "forward compute", "backward compute")
        )
        times = {
            "measured_s": computing.value,
            "low_s": computing.low,
            "high_s": computing.high,
            "optimizer_s": float(phase_time_s(run, "optimizer")),
            "measured_peak_bytes": float(run["peak_memory_bytes"].max()),
        }
        rows.append(key | {"half": ""} | times)
    return pd.DataFrame(rows)


def _with_halves(runs: pd.DataFrame) -> pd.DataFrame:
    """Assign the micro batches of each model alternately to the two halves."""
    halves = runs.half.copy()
    for number, (name, ran) in enumerate(
        runs[runs.half != OUT_OF_MEMORY].groupby("model", sort=False)
    ):
        if len(ran) < 2:
            raise ReproError(
                f"{name} ran with micro batch {ran.micro_batch_size.iloc[0]} only; two halves take "
                "two or more; fix: measure more micro batches"
            )
        odd = (np.arange(len(ran)) + number) % 2
        halves.loc[ran.index] = np.where(odd, HELD_OUT, FITTED)
    return runs.assign(half=halves)


def _parts(runs: pd.DataFrame, cluster: Cluster) -> Iterator[TrainingRows]:
    """Yield the computing of each model, then the optimizer's steps of each, in order of rows."""
    for phases, column in ((_COMPUTING, "measured_s"), (("optimizer",), "optimizer_s")):
        for name, tried in runs.groupby("model", sort=False):
            entry, sizes = model(str(name)), tried.micro_batch_size.to_numpy()
            yield TrainingRows(
                index=tried.index,
                # Sets weigh alike, however many micro batches a model ran with.
                sets=np.full(len(tried), f"{name}, {column}"),
                cluster=cluster,
                workload=workload(entry.family, entry.full, Plan(sizes, sizes)).flat()[0],
                iteration_time_s=tried[column].to_numpy(),
                phases=phases,
            )


def _times_s(runs: pd.DataFrame, cluster: Cluster, parameters: Parameters) -> tuple[Array, Array]:
    """Predict seconds of computing and of the optimizer's step; NaN where memory was full."""
    times = np.concatenate([predicted_times_s(part, parameters) for part in _parts(runs, cluster)])
    computing, optimizer = np.where(runs.half != OUT_OF_MEMORY, np.split(times, 2), np.nan)
    return computing, optimizer


def _with_predictions(
    runs: pd.DataFrame, cluster: Cluster, fitted: Parameters, before: Parameters
) -> pd.DataFrame:
    passes = before.attention_passes * TORCH_SOFTMAX
    counting = before.model_copy(update={"attention_passes": passes})
    predicted_s, optimizer_s = _times_s(runs, cluster, fitted)
    transferred_s, counted_s = (_times_s(runs, cluster, one)[0] for one in (before, counting))
    peaks = [as_run_bytes(part.workload) for part in _parts(runs, cluster)]
    peak = np.split(np.concatenate(peaks), 2)[0]
    return runs.assign(
        predicted_s=predicted_s,
        predicted_optimizer_s=optimizer_s,
        transferred_s=transferred_s,
        counted_s=counted_s,
        predicted_peak_bytes=peak,
        predicted_full=peak > cluster.device.memory_bytes - FRAMEWORK_BYTES,
        error_pct=100 * (predicted_s / runs.measured_s - 1),
        transferred_error_pct=100 * (transferred_s / runs.measured_s - 1),
        counted_error_pct=100 * (counted_s / runs.measured_s - 1),
        memory_error_pct=100 * (peak / runs.measured_peak_bytes - 1),
    )


def as_run_bytes(run: Workload) -> Array:
    """Return the peak bytes of tensors of a measured run, without dropout, with PyTorch's softmax.

    Gradients have half precision. The optimizer's step copies them to fp32 after activations are
    freed.
    """
    widths = WIDTHS["half gradients"]
    held = memory(run, widths=widths, dropout=False, torch_softmax=True)
    copied = WIDTHS["fp32"].gradient / widths.gradient * held.gradients
    most: Array = np.maximum(held.total, held.states + copied)
    return most
