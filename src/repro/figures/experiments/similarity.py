"""How much the testbed's answer depends on the predicted computing time."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import xarray as xr

from repro.figures.experiments.scaling import protocol_colour
from repro.figures.panels import not_run_here, protocol_labels
from repro.results.metrics import communication_fraction
from repro.results.store import has_runs


def sensitivity(results: xr.Dataset) -> hv.Element:
    """Communication fraction against the MFU, a line per protocol.

    Parameters
    ----------
    results : Dataset
        One model and one number of GPUs, with the dimension `mfu`.
    """
    if not has_runs(results):
        return not_run_here(results)
    fraction = 100 * communication_fraction(results).squeeze(drop=True)
    frame = fraction.to_series().unstack("protocol", sort=False).sort_index()
    frame = frame.rename(columns=protocol_labels(results))
    return frame.hvplot.line(
        color=[protocol_colour(label) for label in frame.columns],
        xlabel="MFU at full scale",
        ylabel="communication, % of iteration",
        ylim=(0, 100),
        group_label="protocol",
        value_label="share",
        legend="bottom_left",
        width=520,
        height=340,
    )
