"""How much the testbed's answer depends on the predicted computing time."""

import holoviews as hv
import xarray as xr

from repro.figures.experiments.scaling import protocol_lines
from repro.figures.panels import model_labels, not_run_here, panel_size, panels
from repro.results.metrics import communication_fraction
from repro.results.store import has_runs


def sensitivity(results: xr.Dataset) -> hv.Layout:
    """Communication's share of an iteration at both ends of the interval of the predicted computing
    time, as the fraction of the GPU's peak that each amounts to (MFU); a line per protocol.

    Parameters
    ----------
    results : Dataset
        One model and one number of GPUs, with the dimension `mfu`.
    """
    if not has_runs(results):
        return not_run_here(results)

    def share(chosen: xr.Dataset) -> xr.DataArray:
        return 100 * communication_fraction(chosen).squeeze(["source", "model", "gpus"], drop=True)

    low, high = float(results["mfu"].min()), float(results["mfu"].max())
    overlay = hv.Overlay(protocol_lines(results, share, "mfu")).opts(
        title=f"{model_labels()[results['model'].item()]}, {results['gpus'].item()} GPUs",
        xlabel="MFU at full scale",
        xlim=(low - 0.1 * (high - low), high + 0.1 * (high - low)),
        ylabel="communication, % of iteration",
        ylim=(0, 100),
        legend_position="right",
        **panel_size(),
    )
    return panels([overlay])
