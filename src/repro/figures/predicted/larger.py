"""Weak scaling beyond the papers' clusters, predicted."""

import holoviews as hv
import xarray as xr

from repro.figures.palette import BLACK, BLUE, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import line, panel_size, panels, shows_legend

_COLOURS = (BLACK, SKY_BLUE, BLUE, ORANGE, VERMILION, PURPLE)
_SHOWN = {
    "communication_fraction": "communication, % of iteration",
    "weak_scaling_efficiency": "weak-scaling efficiency, %",
}


def larger_scale(results: xr.Dataset) -> hv.Layout:
    """Draw communication fraction and weak-scaling efficiency by GPUs, a line per model.

    The legend has the seconds on the fewest GPUs, which an efficiency is relative to; pointing at a
    point shows its own.

    Parameters
    ----------
    results : Dataset
        Output of `repro.predict.explore.jobs.larger.predict_larger`.
    """
    gpus = results["gpus"].values.tolist()
    drawn = []
    for number, (name, title) in enumerate(_SHOWN.items()):
        lines: list[hv.Element] = []
        for row, colour in zip(range(results.sizes["model"]), _COLOURS, strict=False):
            one = results.isel(model=row)
            values = {"percent": 100 * one[name], "iteration_s": one["iteration_time_s"]}
            frame = xr.Dataset(values).to_dataframe()[list(values)].dropna().reset_index()
            fewest = frame.iloc[0]
            label = f"{one['label'].item()}, {fewest.iteration_s:.2g} s on {fewest.gpus:.0f} GPUs"
            lines += line(frame, "gpus", "percent", label, colour)
        drawn.append(
            hv.Overlay(lines).opts(
                xticks=[(count, str(count)) for count in gpus],
                xrotation=60,
                xlabel="GPUs",
                ylabel=title,
                ylim=(0, 105),
                show_legend=shows_legend(number, len(_SHOWN)),
                legend_position="right",
                **panel_size(logx=True),
            )
        )
    return panels(drawn)
