"""Weak scaling beyond the papers' clusters, predicted."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import xarray as xr

from repro.figures.palette import BLACK, BLUE, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import HEIGHT, WIDTH, panels

_COLOURS = (BLACK, SKY_BLUE, BLUE, ORANGE, VERMILION, PURPLE)
_SHOWN = {
    "communication_fraction": "waiting and sending, % of iteration",
    "weak_scaling_efficiency": "weak-scaling efficiency, %",
}


def larger_scale(results: xr.Dataset) -> hv.Layout:
    """Share of communication and weak-scaling efficiency by number of GPUs, a line per model.

    Parameters
    ----------
    results : Dataset
        Of `repro.predict.explore.jobs.larger.predict_larger`.
    """
    labels = results["label"].values.tolist()
    drawn = []
    for number, (name, title) in enumerate(_SHOWN.items()):
        frame = (100 * results[name]).to_series().unstack("model", sort=False)
        frame.columns = labels
        drawn.append(
            frame.hvplot.line(
                color=list(_COLOURS[: len(labels)]),
                logx=True,
                xticks=[(int(gpus), str(gpus)) for gpus in frame.index],
                rot=60,
                xlabel="GPUs",
                ylabel=title,
                ylim=(0, 105),
                group_label="model",
                value_label=name,
                legend="bottom_right" if number else False,
                width=WIDTH,
                height=HEIGHT,
            )
        )
    return panels(drawn)
