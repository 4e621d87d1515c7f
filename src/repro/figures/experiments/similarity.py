"""Dependence of the testbed's results on the predicted computing time."""

import holoviews as hv
import xarray as xr

from repro.figures.experiments.scaling import protocol_lines
from repro.figures.panels import model_labels, not_run_here, panel_size, panels
from repro.results.store import has_runs


def sensitivity(results: xr.Dataset) -> hv.Layout:
    """Draw the communication fraction at both ends of the interval of the computing time.

    The horizontal axis is the fraction of the GPU's peak (MFU) that a computing time amounts to.
    There is a line per protocol; its points have the seconds of an iteration.

    Parameters
    ----------
    results : Dataset
        One model and one number of GPUs, with the dimension `mfu`.
    """
    if not has_runs(results):
        return not_run_here(results)

    def one(share: xr.DataArray) -> xr.DataArray:
        return share.squeeze(["model", "gpus"], drop=True)

    low, high = float(results["mfu"].min()), float(results["mfu"].max())
    overlay = hv.Overlay(protocol_lines(results, "mfu", one)).opts(
        title=f"{model_labels()[results['model'].item()]}, {results['gpus'].item()} GPUs",
        xlabel="computing, fraction of the GPU's peak at full scale (MFU, at most 1)",
        xlim=(low - 0.1 * (high - low), high + 0.1 * (high - low)),
        ylabel="communication, % of iteration",
        ylim=(0, 100),
        legend_position="right",
        **panel_size(),
    )
    return panels([overlay])
