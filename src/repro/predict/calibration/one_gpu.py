"""One GPU: calibrated on one half of its measurements, and judged on the other.

What is fitted are the parameters that one GPU shows (`ONE_GPU`), by the fitter and the priors of
`repro.predict.calibration.fitting`; the others stay those of the cluster's calibration. Memory has
no parameters: the memory model is compared as it is.
"""

from dataclasses import dataclass
from functools import partial

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
    """A GPU's measurements beside what the model says of them.

    Attributes
    ----------
    cells : DataFrame
        A row per model and micro batch that was tried:

        model, micro_batch_size
            What was run.
        half
            `FITTED`, `HELD_OUT` or, without times, `OUT_OF_MEMORY`.
        measured_s, low_s, high_s
            Forward and backward computing of an iteration, and its 95 % interval over iterations.
        predicted_s, error_pct
            With the parameters fitted to one half, and how far it is off.
        transferred_s, transferred_error_pct
            The same before any fit, with the cluster's calibration, made on another GPU and with
            Apex's fused softmax.
        counted_s, counted_error_pct
            The same with what torch's softmax moves instead (`TORCH_SOFTMAX`), which is the one
            that ran.
        optimizer_s, predicted_optimizer_s
            Adam's step.
        measured_peak_bytes, predicted_peak_bytes, memory_error_pct
            The most memory that tensors took, without the framework's own; predicted without
            dropout and with torch's softmax, as it ran.
        predicted_full
            Whether the memory model says that the GPU's memory is not enough.
    fit : Fit
        Parameters, and the covariance of those in `ONE_GPU`.
    before : Parameters
        Those of the cluster's calibration.
    """

    cells: pd.DataFrame
    fit: Fit
    before: Parameters


def compare_halves(measured: xr.Dataset, cluster: Cluster) -> Comparison:
    """Fit the model to every other micro batch of each model, and predict all.

    The micro batches that a model ran with, in ascending order, go to the two halves in turns, so
    that each half has small and large ones of every model; the second model begins with the other
    half, and so on, so that each half has some of the smallest and some of the largest.

    Parameters
    ----------
    measured : Dataset
        By the schema of `repro.results.schema`, with runs on one GPU; times of the first source
        and protocol.
    cluster : Cluster
        One with the GPU that was measured. Its calibration gives what one GPU does not show.

    Raises
    ------
    ReproError
        Nothing ran on one GPU, it was another GPU, or a model ran with less than two micro batches.
    """
    check_device(measured, cluster.device)
    cells = _with_halves(measured_cells(measured))
    before = calibration(cluster.calibration).parameters
    rows = rows_of_cells(cells, cluster)
    found = fit(rows[rows.half == FITTED], before, ONE_GPU)
    predicted = _with_predictions(cells, rows, found.parameters, before, cluster.device)
    return Comparison(predicted, found, before)


def summary(compared: Comparison) -> pd.DataFrame:
    """Median and largest absolute error of either half, percent of what was measured.

    Returns
    -------
    DataFrame
        Indexed by quantity and half: number of cells, median_pct and largest_pct. `transferred` are
        predictions before any fit, whose halves are no different.
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
    """The largest micro batch with which each model fits, measured and predicted.

    Returns
    -------
    DataFrame
        Indexed by model, among the micro batches that were tried: `measured` and `predicted`, the
        largest that fits, `full`, the first one that was measured not to (missing: all did), and
        `agrees`. Missing: none fits.
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
    """What was fitted: its value in the cluster's calibration, on this GPU, and how sure that is.

    Returns
    -------
    DataFrame
        Indexed by parameter: `before` and `fitted` in the units of `Parameters`, and
        `deviation_pct`, one standard deviation of the latter.
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
    """Deal the micro batches of each model to the two halves in turns."""
    halves = cells.half.copy()
    for number, (name, ran) in enumerate(
        cells[cells.half != OUT_OF_MEMORY].groupby("model", sort=False)
    ):
        if len(ran) < 2:
            raise ReproError(
                f"{name} ran with micro batch {ran.micro_batch_size.iloc[0]} only; to fit one half "
                "and predict the other takes two or more: measure more of them"
            )
        turns = (np.arange(len(ran)) + number) % 2
        halves.loc[ran.index] = np.where(turns, HELD_OUT, FITTED)
    return cells.assign(half=halves)


def _with_predictions(
    cells: pd.DataFrame, rows: pd.DataFrame, fitted: Parameters, before: Parameters, gpu: Gpu
) -> pd.DataFrame:
    ran = (cells.half != OUT_OF_MEMORY).to_numpy()
    times = by_row(rows, lambda part: predicted_times_s(part, fitted))
    computing, optimizer = np.split(times, 2)
    passes = before.attention_passes * TORCH_SOFTMAX
    counting = before.model_copy(update={"attention_passes": passes})
    transferred, counted = (
        by_row(rows, partial(predicted_times_s, parameters=one))[: len(cells)]
        for one in (before, counting)
    )
    peak = by_row(rows, lambda part: as_run_bytes(part.workload))[: len(cells)]
    predicted = cells.assign(
        # A configuration that does not run has no time.
        predicted_s=np.where(ran, computing, np.nan),
        predicted_optimizer_s=np.where(ran, optimizer, np.nan),
        transferred_s=np.where(ran, transferred, np.nan),
        counted_s=np.where(ran, counted, np.nan),
        predicted_peak_bytes=peak,
        predicted_full=peak > tensor_bytes(gpu),
    )
    return predicted.assign(
        error_pct=100 * (predicted.predicted_s / cells.measured_s - 1),
        transferred_error_pct=100 * (predicted.transferred_s / cells.measured_s - 1),
        counted_error_pct=100 * (predicted.counted_s / cells.measured_s - 1),
        memory_error_pct=100 * (peak / cells.measured_peak_bytes - 1),
    )


def as_run_bytes(workload: Workload) -> Array:
    """Bytes of tensors of a run here, at most: gradients in half precision, of which the
    optimizer's step makes fp32 ones once activations are gone, no dropout, torch's softmax."""
    widths = WIDTHS["half gradients"]
    held = memory(workload, widths=widths, dropout=False, torch_softmax=True)
    copied = WIDTHS["fp32"].gradient / widths.gradient * held.gradients
    return np.maximum(held.total, held.states + copied)


def tensor_bytes(gpu: Gpu) -> float:
    """What a GPU's memory has for tensors: all but what the framework takes."""
    return gpu.memory_bytes - FRAMEWORK_BYTES
