"""Figures of the GPT-350M report: collectives of the distributed optimizer, and their cost.

Times are full-scale equivalents: testbed seconds divided by the configuration's time scale.
"""

from collections.abc import Callable, Sequence

import holoviews as hv
import xarray as xr

from repro.figures.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import (
    bars,
    line_of_iterations,
    model_labels,
    model_names,
    not_run_here,
    panel_size,
    panels,
    per_iteration,
    published_marks,
    shows_legend,
)
from repro.figures.published import collectives_ms, gpt350m_shares_percent
from repro.results.metrics import communication_fraction
from repro.results.sharded import collective_times_s, tokens_per_s_per_gpu
from repro.results.store import has_runs

_COLLECTIVE_COLOURS = (VERMILION, ORANGE)
_BATCH_COLOURS = (BLACK, SKY_BLUE, BLUE, GREEN, ORANGE, VERMILION, PURPLE)
# Model of the report's numbers.
_PUBLISHED = "gpt-350m"
# The dataset has one source, and the cluster one network between nodes.
_FIRST = {"source": 0, "protocol": 0}


def collective_times(results: xr.Dataset) -> hv.Layout:
    """Draw reduce-scatter and all-gather by number of GPUs, a panel per model (figure 1).

    They do not depend on the batch: the smallest is shown. Points are single iterations.
    """
    if not has_runs(results):
        return not_run_here(results)

    def times_ms(chosen: xr.Dataset) -> xr.DataArray:
        smallest = chosen.isel(micro_batch_size=0)
        return 1e3 * collective_times_s(smallest).isel(_FIRST, drop=True)

    times, every = times_ms(results), per_iteration(results, times_ms)
    drawn, names = [], model_names(results)
    for number, name in enumerate(names):
        table = times.sel(model=name, drop=True).transpose("gpus", ...).to_series().unstack()
        rows = every.sel(model=name, gpus=table.index, collective=table.columns)
        iterations = rows.transpose("collective", "gpus", "iteration").values
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
                iterations=list(iterations) if every.sizes["iteration"] > 1 else [],
            )
        )
    return panels(drawn)


def share_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Draw the communication fraction, a line per micro batch, a panel per model (figures 2 and 3).

    Small points are single iterations; pointing at a large one shows the seconds of an iteration.
    """
    if not has_runs(results):
        return not_run_here(results)
    return _lines(
        results,
        lambda one: 100 * communication_fraction(one),
        "communication, % of iteration",
        gpt350m_shares_percent(),
    )


def throughput_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Draw tokens per second and GPU, a line per micro batch, a panel per model (figure 4).

    Throughput is the tokens of an iteration over its mean time. Small points are single iterations.
    """
    if not has_runs(results):
        return not_run_here(results)
    return _lines(results, tokens_per_s_per_gpu, "tokens/s per GPU at full scale", [])


def _lines(
    results: xr.Dataset,
    statistic: Callable[[xr.Dataset], xr.DataArray],
    label: str,
    published: Sequence[tuple[int, float]],
) -> hv.Layout:
    """Draw a statistic by GPUs; `published` belongs to one model."""
    first = results.isel(_FIRST, drop=True)
    drawn, names = [], model_names(results)
    for number, name in enumerate(names):
        curves: list[hv.Element] = []
        for size, colour in zip(first["micro_batch_size"].values, _BATCH_COLOURS, strict=False):
            own = first.sel(model=[name], micro_batch_size=size)
            curves += line_of_iterations(own, statistic, "gpus", f"micro batch {size}", colour)
        if published:
            curves.append(published_marks(published if name == _PUBLISHED else []))
        drawn.append(
            hv.Overlay(curves).opts(
                title=model_labels()[name],
                xlabel="GPUs",
                ylabel=label,
                xticks=first["gpus"].values.tolist(),
                xlim=(0.5, float(first["gpus"].max()) + 0.5),
                ylim=(0, 1.08 * float(per_iteration(first, statistic).max())),
                show_legend=shows_legend(number, len(names)),
                legend_position="right",
                **panel_size(),
            )
        )
    return panels(drawn)
