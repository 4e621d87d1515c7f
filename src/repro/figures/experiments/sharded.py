"""The GPT-350M report's four figures: what the distributed optimizer's collectives take, and cost.

Times are full-scale equivalents: testbed seconds divided by the configuration's time scale.
"""

from collections.abc import Sequence

import holoviews as hv
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import (
    bars,
    line,
    model_labels,
    model_names,
    not_run_here,
    panel_size,
    panels,
    published_marks,
    shows_legend,
)
from repro.figures.published import collectives_ms, gpt350m_shares_percent
from repro.results.metrics import communication_fraction
from repro.results.sharded import collective_times_s, tokens_per_s_per_gpu
from repro.results.store import has_runs

_COLLECTIVE_COLOURS = (VERMILION, ORANGE)
_BATCH_COLOURS = (BLACK, SKY_BLUE, BLUE, GREEN, ORANGE, VERMILION, PURPLE)
# The model that the report's numbers are of.
_PUBLISHED = "gpt-350m"
# One source, and the one network between the cluster's nodes.
_FIRST = {"source": 0, "protocol": 0}


def collective_times(results: xr.Dataset) -> hv.Layout:
    """Reduce-scatter and all-gather by number of GPUs, a panel per model (the report's figure 1).

    They do not depend on the batch: the smallest is shown.
    """
    if not has_runs(results):
        return not_run_here(results)
    times = 1e3 * collective_times_s(results).isel(_FIRST | {"micro_batch_size": 0}, drop=True)
    drawn, names = [], model_names(results)
    for number, name in enumerate(names):
        table = times.sel(model=name, drop=True).transpose("gpus", ...).to_series().unstack()
        stated = collectives_ms() if name == _PUBLISHED else []
        drawn.append(
            bars(
                table,
                dict(zip(table.columns, _COLLECTIVE_COLOURS, strict=True)),
                title=f"{model_labels()[name]}, by GPUs",
                ylabel="ms at full scale",
                legend=shows_legend(number, len(names)),
                stacked=False,
                published=[(gpus, value) for gpus, value in stated if gpus in table.index],
            )
        )
    return panels(drawn)


def share_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Communication's share of an iteration, a line per micro batch, a panel per model (figures 2
    and 3)."""
    if not has_runs(results):
        return not_run_here(results)
    share = 100 * communication_fraction(results)
    return _lines(share, "communication, % of iteration", gpt350m_shares_percent())


def throughput_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Tokens a second and GPU, a line per micro batch, a panel per model (figure 4)."""
    if not has_runs(results):
        return not_run_here(results)
    return _lines(tokens_per_s_per_gpu(results), "tokens/s per GPU at full scale", [])


def _lines(values: xr.DataArray, label: str, published: Sequence[tuple[int, float]]) -> hv.Layout:
    """`published` is of one model, by GPUs."""
    shown = values.isel(_FIRST, drop=True)
    drawn, names = [], model_names(values)
    for number, name in enumerate(names):
        curves: list[hv.Element] = []
        for size, colour in zip(shown["micro_batch_size"].values, _BATCH_COLOURS, strict=False):
            own = shown.sel(model=name, micro_batch_size=size, drop=True).rename("value")
            frame = own.to_dataframe().dropna().reset_index()
            curves += line(frame, "gpus", "value", f"micro batch {size}", colour)
        if published:
            curves.append(published_marks(published if name == _PUBLISHED else []))
        drawn.append(
            hv.Overlay(curves).opts(
                title=model_labels()[name],
                xlabel="GPUs",
                ylabel=label,
                xticks=shown["gpus"].values.tolist(),
                xlim=(0.5, float(shown["gpus"].max()) + 0.5),
                ylim=(0, 1.08 * float(shown.max())),
                show_legend=shows_legend(number, len(names)),
                legend_position="right",
                **panel_size(),
            )
        )
    return panels(drawn)
