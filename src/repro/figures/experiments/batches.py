"""Figure 6 of the journal paper: communication fraction by batch, up to the memory limit."""

import holoviews as hv
import numpy as np
import pandas as pd
import xarray as xr

from repro.figures.panels import (
    MODEL_COLOURS,
    line_of_iterations,
    model_labels,
    model_names,
    not_run_here,
    option,
    options,
    panel_size,
    panels,
    protocol_labels,
)
from repro.figures.published import batch_statements
from repro.results.metrics import communication_fraction, iteration_time_s, timer_fraction
from repro.results.store import has_pipelines, has_runs

_FULL = "OOM"


def batch_heatmap(results: xr.Dataset) -> hv.Overlay:
    """Draw the communication fraction by batch and configuration.

    A cell that ran out of memory says OOM. With data parallelism, communication is straggler wait
    and gradient sync (figure 6a); in pipelines, it is forward receive with the fill and embedding
    sync with the drain, as the paper's timers show them (figure 6b). Pointing at a cell shows the
    seconds of its iteration.
    """
    if not has_runs(results):
        return not_run_here(results)
    pipeline = has_pipelines(results)
    share = timer_fraction(results) if pipeline else communication_fraction(results)
    seconds = iteration_time_s(results)
    table = _table(100 * share, seconds, results["out_of_memory"], by_gpus=pipeline)
    batches = sorted(table["batch"].unique())
    rows = [*dict.fromkeys(table["configuration"])][::-1]
    # A batch that was not measured lies between its neighbours.
    stated = [
        (np.interp(batch, batches, range(len(batches))), len(rows), text)
        for batch, text in batch_statements(pipeline).items()
        if batches[0] <= batch <= batches[-1]
    ]
    table["x"] = [batches.index(batch) for batch in table["batch"]]
    table["y"] = [rows.index(name) for name in table["configuration"]]
    cells = hv.Rectangles(
        [
            (x - 0.5, y - 0.5, x + 0.5, y + 0.5, share, iteration_s)
            for x, y, share, iteration_s in table[["x", "y", "share", "iteration_s"]].values
        ],
        vdims=["share", "iteration_s"],
    ).opts(
        color="share",
        cmap="YlOrRd",
        clim=(0, 100),
        clipping_colors={"NaN": "#EEEEEE"},
        xticks=list(enumerate(map(str, batches))),
        yticks=list(enumerate([*rows, *(["published"] if stated else [])])),
        ylim=(-0.5, len(rows) - 0.5 + bool(stated)),
        **options(matplotlib={}, bokeh={"tools": ["hover"]}),
        xlabel="global batch, sequences",
        ylabel="",
        title="communication, % of iteration",
    )
    full = table["label"] == _FULL
    words = [
        hv.Labels(table[chosen], ["x", "y"], "label").opts(
            **option(colour, matplotlib="color", bokeh="text_color")
        )
        for chosen, colour in ((~full, "black"), (full, "#A63D00"))
        if chosen.any()
    ]
    black = option("black", matplotlib="color", bokeh="text_color")
    overlay = hv.Overlay([cells, *words, hv.Labels(stated, label="published").opts(**black)])
    if hv.Store.current_backend == "matplotlib":
        aspect = 1.6 * len(batches) / max(len(rows) + 1, 2)
        return overlay.opts(fig_size=230, aspect=aspect, backend="matplotlib")
    return overlay.opts(width=680, height=146 + 36 * len(rows), backend="bokeh")


def _table(
    share: xr.DataArray, seconds: xr.DataArray, full: xr.DataArray, *, by_gpus: bool
) -> pd.DataFrame:
    squeezed = [dim for dim in ("source", "protocol") if dim in share.dims]
    cells = xr.Dataset({"share": share, "iteration_s": seconds, "full": full})
    frame = cells.squeeze(squeezed, drop=True).to_dataframe()
    frame = frame.reset_index().dropna(subset="full")
    labels = model_labels()
    frame["configuration"] = [
        f"{labels[name]}, {gpus} GPUs" if by_gpus else labels[name]
        for name, gpus in zip(frame["model"], frame["gpus"], strict=True)
    ]
    frame["batch"] = frame["global_batch_size"]
    frame["label"] = np.where(frame["full"] > 0, _FULL, frame["share"].map("{:.0f}".format))
    shown = ["batch", "configuration", "share", "iteration_s", "label"]
    return frame[shown].reset_index(drop=True)


def share_by_micro_batch(results: xr.Dataset) -> hv.Layout:
    """Draw the fraction of forward receive and embedding sync by micro batch, a line per model.

    Fractions are those of the paper's timers at the most GPUs over the first protocol. Small points
    are single iterations; pointing at a large one shows the seconds of an iteration.
    """
    if not has_runs(results):
        return not_run_here(results)
    most = results.isel(gpus=-1, protocol=0)
    drawn: list[hv.Element] = []
    for name, colour in zip(model_names(results), MODEL_COLOURS, strict=False):
        own, label = most.sel(model=name), model_labels()[name]
        drawn += line_of_iterations(
            own, lambda one: 100 * timer_fraction(one), "micro_batch_size", label, colour
        )
    protocol = next(iter(protocol_labels(results).values()))
    sizes = results["micro_batch_size"].values.tolist()
    overlay = hv.Overlay(drawn).opts(
        title=f"{most['gpus'].item()} GPUs, {protocol}",
        xticks=[(size, str(size)) for size in sizes],
        xlim=(0.8 * sizes[0], 1.25 * sizes[-1]),
        xlabel="micro batch, sequences",
        ylabel="forward receive and embedding sync, %",
        ylim=(0, 100),
        show_legend=True,
        legend_position="right",
        **panel_size(logx=True),
    )
    return panels([overlay])
