"""Predictions of one GPU by parameters fitted to another one."""

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.clusters import Cluster
from repro.predict.calibration.one_gpu_rows import (
    ONE_GPU,
    by_row,
    calibration_rows,
    cells_that_ran,
    check_device,
    measured_cells,
    rows_of_cells,
)
from repro.predict.calibration.step_fitting import fit, predicted_times_s
from repro.predict.parameters import calibration

# The host's launches decide the time of the smallest micro batch. The GPU decides times that are
# longer by this factor.
_GPU_BOUND = 1.5


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
    check_device(judged, judged_on.device)
    before = calibration(fitted_on.calibration).parameters
    found = fit(calibration_rows(fitted_to, fitted_on), before, ONE_GPU)
    cells = cells_that_ran(measured_cells(judged))
    rows = rows_of_cells(cells, judged_on)
    times = by_row(rows, lambda part: predicted_times_s(part, found.parameters))
    table = cells.assign(predicted_s=np.split(times, 2)[0])
    least_s = table.groupby("model").measured_s.transform("first")
    return table.assign(
        error_pct=100 * (table.predicted_s / table.measured_s - 1),
        gpu_bound=table.measured_s > _GPU_BOUND * least_s,
    )[["model", "micro_batch_size", "measured_s", "predicted_s", "error_pct", "gpu_bound"]]


def carried_summary(carried: pd.DataFrame) -> pd.DataFrame:
    """Summarize the absolute errors of `carried_over`.

    Returns
    -------
    DataFrame
        Indexed by gpu_bound: number of cells, median_pct and largest_pct.
    """
    absolute = carried.error_pct.abs().groupby(carried.gpu_bound).agg(["size", "median", "max"])
    return absolute.set_axis(["cells", "median_pct", "largest_pct"], axis=1)
