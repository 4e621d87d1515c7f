"""Errors of predicted times."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd

from repro.catalog.systems.protocols import read_protocols
from repro.figures.palette import GREY
from repro.figures.panels import MODEL_COLOURS, model_labels


def prediction_errors(rows: pd.DataFrame) -> hv.Overlay:
    """Draw the error of each prediction in percent, by ranks and protocol, a colour per model.

    Configurations that were calibrated on are left out. Pointing at a mark shows both times.

    Parameters
    ----------
    rows : DataFrame
        Output of `repro.predict.explore.experiments.cpu_ranks.predict_testbed`.
    """
    shown = rows[~rows.calibrated].sort_values("gpus", kind="stable")
    labels = {name: entry.label for name, entry in read_protocols().items()}
    models = model_labels()
    points = pd.DataFrame(
        {
            "ranks and protocol": [
                f"{gpus} {labels[name]}"
                for gpus, name in zip(shown.gpus, shown.protocol, strict=True)
            ],
            "error": shown.error_pct,
            "measured_s": shown.measured_s,
            "predicted_s": shown.predicted_s,
            "model": shown.model.map(models),
        }
    )
    drawn = points.hvplot.scatter(
        x="ranks and protocol",
        y="error",
        by="model",
        hover_cols=["measured_s", "predicted_s"],
        color=list(MODEL_COLOURS),
        size=80,
        xlabel="",
        ylabel="error of the iteration time, %",
        legend="top_right",
        width=560,
        height=380,
    )
    return drawn * hv.HLine(0).opts(color=GREY)
