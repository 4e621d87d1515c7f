"""Predicted against measured times."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd

from repro.catalog.protocols import read_protocols
from repro.figures.scaling import PROTOCOL_COLOURS


def predicted_against_measured(rows: pd.DataFrame) -> hv.Overlay:
    """A point per configuration that was not calibrated on, by protocol; the line is equality.

    Parameters
    ----------
    rows : DataFrame
        Of `repro.predict.cpu_ranks.predict_testbed`.
    """
    shown = rows[~rows.calibrated]
    labels = {name: entry.label for name, entry in read_protocols().items()}
    points = shown.assign(protocol=shown.protocol.map(labels)).hvplot.scatter(
        x="measured_s",
        y="predicted_s",
        by="protocol",
        color=[PROTOCOL_COLOURS[label] for label in sorted(shown.protocol.map(labels).unique())],
        logx=True,
        logy=True,
        xlabel="measured, s",
        ylabel="predicted, s",
        legend="top_left",
        width=480,
        height=420,
    )
    ends = [shown.measured_s.min(), shown.measured_s.max()]
    return points * hv.Curve((ends, ends)).opts(color="#999999")
