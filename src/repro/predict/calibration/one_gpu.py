"""Calibration to one half of a GPU's measurements, compared with the other half.

The parameters that one GPU shows (`ONE_GPU`) are fitted as in
`repro.predict.calibration.step_fitting`. All others keep their values of the cluster's calibration.
The memory model has no parameters to fit.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.errors import ReproError
from repro.predict.calibration.one_gpu_rows import (
    ONE_GPU,
    OUT_OF_MEMORY,
    by_row,
    check_device,
    measured_cells,
    rows_of_cells,
)
from repro.predict.calibration.step_fitting import Fit, fit, predicted_times_s
from repro.predict.memory import WIDTHS
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.layers import TORCH_SOFTMAX
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.workload import Array, Workload

FITTED, HELD_OUT = "fitted", "held out"


@dataclass(frozen=True)
class Comparison:
    """Measurements of a GPU and predictions of them.

    Attributes
    ----------
    cells : DataFrame
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
    fit : Fit
        Fitted parameters, and the covariance of those in `ONE_GPU`.
    before : Parameters
        Parameters of the cluster's calibration.
    """

    cells: pd.DataFrame
    fit: Fit
    before: Parameters


def compare_halves(measured: xr.Dataset, cluster: Cluster) -> Comparison:
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

    Raises
    ------
    ReproError
        Nothing ran on one GPU, the GPU is not the cluster's, or a model ran with a single micro
        batch.
    """
    check_device(measured, cluster.device)
    cells = _with_halves(measured_cells(measured))
    before = calibration(cluster.calibration).parameters
    rows = rows_of_cells(cells, cluster)
    found = fit(rows[rows.half == FITTED], before, ONE_GPU)
    predicted = _with_predictions(cells, rows, found.parameters, before, cluster.device)
    return Comparison(predicted, found, before)


def summary(compared: Comparison) -> pd.DataFrame:
    """Summarize the absolute errors of either half, in percent of the measured value.

    Returns
    -------
    DataFrame
        Indexed by quantity and half: number of cells, median_pct and largest_pct. `transferred`
        marks predictions before any fit.
    """
    quantities = {
        "forward + backward": "error_pct",
        "forward + backward, transferred": "transferred_error_pct",
        "forward + backward, transferred, torch's softmax": "counted_error_pct",
        "peak memory": "memory_error_pct",
    }
    rows = {
        (quantity, half): compared.cells.loc[compared.cells.half == half, column].abs()
        for quantity, column in quantities.items()
        for half in (FITTED, HELD_OUT)
    }
    table = pd.DataFrame(
        [(len(errors), errors.median(), errors.max()) for errors in rows.values()],
        columns=["cells", "median_pct", "largest_pct"],
    )
    return table.set_index(pd.MultiIndex.from_tuples(list(rows), names=["quantity", "half"]))


def memory_limits(compared: Comparison) -> pd.DataFrame:
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
        for name, tried in compared.cells.groupby("model", sort=False)
    }
    table = pd.DataFrame.from_dict(limits, orient="index").astype("Int64")
    return table.assign(agrees=(table.measured == table.predicted).fillna(False))


def fitted_parameters(compared: Comparison) -> pd.DataFrame:
    """Return the fitted parameters, their values before the fit and their uncertainty.

    Returns
    -------
    DataFrame
        Indexed by parameter: `before` (of the cluster's calibration) and `fitted` in the units of
        `Parameters`, and `deviation_pct`, one standard deviation of `fitted`.
    """
    found = compared.fit
    return pd.DataFrame(
        {
            "before": [getattr(compared.before, name) for name in found.names],
            "fitted": [getattr(found.parameters, name) for name in found.names],
            "deviation_pct": 100 * np.sqrt(np.diag(found.covariance)),
        },
        index=pd.Index(found.names, name="parameter"),
    )


def _with_halves(cells: pd.DataFrame) -> pd.DataFrame:
    """Assign the micro batches of each model alternately to the two halves."""
    halves = cells.half.copy()
    for number, (name, ran) in enumerate(
        cells[cells.half != OUT_OF_MEMORY].groupby("model", sort=False)
    ):
        if len(ran) < 2:
            raise ReproError(
                f"{name} ran with micro batch {ran.micro_batch_size.iloc[0]} only; two halves take "
                "two or more; fix: measure more micro batches"
            )
        odd = (np.arange(len(ran)) + number) % 2
        halves.loc[ran.index] = np.where(odd, HELD_OUT, FITTED)
    return cells.assign(half=halves)


def _with_predictions(
    cells: pd.DataFrame, rows: pd.DataFrame, fitted: Parameters, before: Parameters, gpu: Gpu
) -> pd.DataFrame:
    passes = before.attention_passes * TORCH_SOFTMAX
    counting = before.model_copy(update={"attention_passes": passes})

    def times_s(parameters: Parameters) -> tuple[Array, Array]:
        times = by_row(rows, lambda part: predicted_times_s(part, parameters))
        # A configuration that does not run has no time.
        computing, optimizer = np.where(cells.half != OUT_OF_MEMORY, np.split(times, 2), np.nan)
        return computing, optimizer

    (predicted_s, optimizer_s), (transferred_s, _), (counted_s, _) = map(
        times_s, (fitted, before, counting)
    )
    peak = by_row(rows, lambda part: as_run_bytes(part.workload))[: len(cells)]
    return cells.assign(
        predicted_s=predicted_s,
        predicted_optimizer_s=optimizer_s,
        transferred_s=transferred_s,
        counted_s=counted_s,
        predicted_peak_bytes=peak,
        predicted_full=peak > tensor_bytes(gpu),
        error_pct=100 * (predicted_s / cells.measured_s - 1),
        transferred_error_pct=100 * (transferred_s / cells.measured_s - 1),
        counted_error_pct=100 * (counted_s / cells.measured_s - 1),
        memory_error_pct=100 * (peak / cells.measured_peak_bytes - 1),
    )


def as_run_bytes(workload: Workload) -> Array:
    """Return the peak bytes of tensors of a measured run, without dropout, with PyTorch's softmax.

    Gradients have half precision. The optimizer's step copies them to fp32 after activations are
    freed.
    """
    widths = WIDTHS["half gradients"]
    held = memory(workload, widths=widths, dropout=False, torch_softmax=True)
    copied = WIDTHS["fp32"].gradient / widths.gradient * held.gradients
    return np.maximum(held.total, held.states + copied)


def tensor_bytes(gpu: Gpu) -> float:
    """Return the bytes of a GPU's memory for tensors, without those of the framework."""
    return gpu.memory_bytes - FRAMEWORK_BYTES
