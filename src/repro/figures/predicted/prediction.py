"""Predicted against measured times."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd

from repro.catalog.systems.protocols import read_protocols
from repro.figures.palette import GREY
from repro.figures.panels import MODEL_COLOURS, model_labels
from repro.predict.explore.experiments.cpu_ranks import error_pct


def prediction_errors(rows: pd.DataFrame) -> hv.Overlay:
    """Error of each prediction in percent, by ranks and protocol, a colour per model.

    Configurations that were calibrated on are left out.

    Parameters
    ----------
    rows : DataFrame
        Of `repro.predict.explore.experiments.cpu_ranks.predict_testbed`.
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
            "error": error_pct(shown),
            "model": shown.model.map(models),
        }
    )
    drawn = points.hvplot.scatter(
        x="ranks and protocol",
        y="error",
        by="model",
        color=list(MODEL_COLOURS),
        size=80,
        xlabel="",
        ylabel="predicted over measured, % off",
        legend="top_right",
        width=560,
        height=380,
    )
    return drawn * hv.HLine(0).opts(color=GREY)
