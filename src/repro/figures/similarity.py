"""How much the testbed's answer depends on the one number it assumes."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import xarray as xr

from repro.catalog.protocols import read_protocols
from repro.figures.scaling import PROTOCOL_COLOURS, has_runs, not_run_here
from repro.results.metrics import communication_fraction


def sensitivity(results: xr.Dataset) -> hv.Element:
    """Communication fraction against the assumed MFU, a line per protocol.

    Parameters
    ----------
    results : Dataset
        One model and one number of GPUs, with the dimension `mfu`.
    """
    if not has_runs(results):
        return not_run_here(results)
    fraction = 100 * communication_fraction(results).squeeze(drop=True)
    labels = {name: entry.label for name, entry in read_protocols().items()}
    frame = pd.DataFrame(
        {labels[str(p)]: fraction.sel(protocol=p).to_series() for p in results["protocol"].values}
    ).sort_index()
    return frame.hvplot.line(
        color=[PROTOCOL_COLOURS[label] for label in frame.columns],
        xlabel="assumed MFU at full scale",
        ylabel="communication, % of iteration",
        ylim=(0, 100),
        group_label="protocol",
        value_label="share",
        legend="bottom_left",
        width=520,
        height=340,
    )
