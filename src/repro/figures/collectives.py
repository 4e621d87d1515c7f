"""Bus bandwidth of collectives by size, at full scale."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import xarray as xr

from repro.figures.panels import HEIGHT, WIDTH, not_run_here, option, panels, protocol_labels
from repro.figures.scaling import PROTOCOL_COLOURS
from repro.results.collectives import bandwidths

_BUSBW = "full_scale_busbw_GBps"


def bandwidth_curves(
    results: xr.Dataset,
    expected: xr.Dataset | None = None,
    *,
    gpus: int | None = None,
    layout: str = "world",
) -> hv.Layout:
    """A panel per collective, a colour per protocol: points with their intervals, and what is
    predicted as broken lines with a band.

    Parameters
    ----------
    results : Dataset
        Measured, or with bandwidths already.
    expected : Dataset, optional
        Of `repro.predict.collective_sweeps.predict_sweep`.
    gpus : int, optional
        Without it, the most.
    """
    if not results.data_vars:
        return not_run_here(results)
    bands = bandwidths(results)
    shown = bands.squeeze("source", drop=True).sel(layout=layout, in_place="out of place")
    count = int(shown["gpus"].max()) if gpus is None else gpus
    scale = float(bands.attrs.get("rate_scale", 1.0))
    drawn = []
    for number, name in enumerate(shown["collective"].values):
        chosen = shown.sel(collective=name, gpus=count)
        overlay = _points(chosen, scale, legend=number == 0)
        if expected is not None and layout == "world":
            own = expected.isel(source=0).sel(collective=name, gpus=count, layout=layout)
            overlay = _bands(own.isel(in_place=0), scale) * overlay
        drawn.append(overlay.opts(title=f"{name}, {count} GPUs"))
    return panels(drawn)


def _points(chosen: xr.Dataset, scale: float, *, legend: bool) -> hv.Overlay:
    elements = []
    for name, label in protocol_labels(chosen).items():
        frame = _frame(chosen.sel(protocol=name), scale)
        about = {"kdims": "size", "vdims": ["busbw", "below", "above"], "label": label}
        colour = PROTOCOL_COLOURS[label]
        elements += [
            hv.Curve(frame, "size", "busbw", label=label).opts(color=colour),
            hv.ErrorBars(frame, **about).opts(
                **option(colour, matplotlib="edgecolor", bokeh="line_color")
            ),
            hv.Scatter(frame, "size", "busbw", label=label).opts(
                color=colour, **option(5, matplotlib="s", bokeh="size")
            ),
        ]
    overlay = hv.Overlay(elements)
    size = {} if hv.Store.current_backend == "matplotlib" else {"width": WIDTH, "height": HEIGHT}
    return overlay.opts(
        logx=True,
        logy=True,
        xlabel="size at full scale, bytes",
        ylabel="bus bandwidth, GB/s at full scale",
        show_legend=legend,
        legend_position="bottom_right",
        **size,
    )


def _bands(chosen: xr.Dataset, scale: float) -> hv.Overlay:
    elements = []
    for name, label in protocol_labels(chosen).items():
        frame = _frame(chosen.sel(protocol=name), scale)
        colour = PROTOCOL_COLOURS[label]
        elements += [
            hv.Area(frame, "size", ["low", "high"]).opts(color=colour, alpha=0.12),
            hv.Curve(frame, "size", "busbw").opts(
                color=colour,
                **option("dashed", matplotlib="linestyle", bokeh="line_dash"),
            ),
        ]
    return hv.Overlay(elements)


def _frame(chosen: xr.Dataset, scale: float) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "size": chosen["size_bytes"].values / scale,
            "busbw": chosen[_BUSBW].values,
            "low": chosen[f"{_BUSBW}_low"].values,
            "high": chosen[f"{_BUSBW}_high"].values,
        }
    ).dropna()
    return frame.assign(below=frame.busbw - frame.low, above=frame.high - frame.busbw)
