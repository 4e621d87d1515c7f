"""Bus bandwidth of collectives by size, at full scale."""

from collections.abc import Iterator

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import xarray as xr

from repro.figures.experiments.scaling import protocol_colour
from repro.figures.palette import BLACK
from repro.figures.panels import (
    bounds,
    not_run_here,
    option,
    options,
    panel_size,
    panels,
    protocol_labels,
    published_marks,
    shows_legend,
)
from repro.figures.published import published_busbw
from repro.predict.network.expected import expected_busbw
from repro.results.collectives import OUT_OF_PLACE, bandwidths

_BUSBW = "full_scale_busbw_GBps"
# Labels in the legend by the source of the values.
_HOW = {
    "testbed": "measured",
    "cluster": "measured",
    "paper": "published",
    "predicted": "predicted",
}
_SIZE_TICKS = [
    *((1e1, "10 B"), (1e3, "1 KB"), (1e5, "100 KB")),
    *((1e7, "10 MB"), (1e9, "1 GB"), (1e11, "100 GB")),
]


def bandwidth_curves(
    results: xr.Dataset,
    expected: xr.Dataset | None = None,
    *,
    gpus: int | None = None,
    layout: str = "world",
) -> hv.Layout:
    """Draw bus bandwidth by size, a panel per collective, a colour per protocol.

    Points have intervals; predictions are broken lines with a band. Dash-dotted lines are the
    bounds set by the slowest link on the path.

    Parameters
    ----------
    results : Dataset
        Measured, or with bandwidths already.
    expected : Dataset, optional
        Output of `repro.predict.explore.experiments.collective_sweeps.predict_sweep`.
    gpus : int, optional
        Number of GPUs. Default: the most.
    """
    if not results.data_vars:
        return not_run_here(results)
    bands = bandwidths(results)
    how = _HOW[str(bands["source"].item())]
    shown = bands.squeeze("source", drop=True).sel(layout=layout, in_place=OUT_OF_PLACE)
    count = int(shown["gpus"].max()) if gpus is None else gpus
    scale = float(bands.attrs.get("rate_scale", 1.0))
    names = [str(name) for name in shown["collective"].values]
    cluster = bands.attrs.get("cluster")
    stated = {name: published_busbw(cluster, name, count) for name in names} if cluster else {}
    drawn = []
    for number, name in enumerate(names):
        elements = _points(shown.sel(collective=name, gpus=count), scale, how)
        if expected is not None and layout == "world":
            own = expected.isel(source=0).sel(collective=name, gpus=count, layout=layout)
            elements = _bands(own.isel(in_place=0), scale) + elements
        if layout == "world" and elements:
            elements += _bounds(results, name, count)
        if any(stated.values()) and elements:
            elements.append(published_marks(stated[name]))
        legend = shows_legend(number, len(names))
        drawn.append(_panel(elements, f"{name}, {count} GPUs", legend=legend))
    return panels(drawn)


def _bounds(results: xr.Dataset, collective: str, gpus: int) -> list[hv.Element]:
    """Return the bus bandwidth that the slowest link on the path allows.

    Emulated links have a rate for each protocol; links of a known cluster have a nominal rate.
    """
    if "link_set_gbps" in results:
        rates = results["link_set_gbps"].sel(gpus=gpus).squeeze("source").min("level")
        scale = 8 * float(results.attrs["rate_scale"])
        named = zip(protocol_labels(results).values(), (rates / scale).values, strict=True)
        return bounds({protocol_colour(label): float(rate) for label, rate in named}, "link rate")
    if "cluster" not in results.attrs:
        return []
    expected = expected_busbw(results.attrs["cluster"], collective, [1.0], gpus)
    return bounds({BLACK: float(expected.ceiling_GBps.iloc[0])}, "link rate")


def _panel(elements: list[hv.Element], title: str, *, legend: bool) -> hv.Overlay:
    if not elements:
        return hv.Overlay([hv.Text(0.5, 0.5, "nothing was measured")]).opts(title=title)
    return hv.Overlay(elements).opts(
        title=title,
        xlabel="size at full scale",
        ylabel="bus bandwidth, GB/s at full scale",
        xticks=_SIZE_TICKS,
        show_legend=legend,
        legend_position="right",
        **panel_size(logx=True, logy=True),
    )


def _points(chosen: xr.Dataset, scale: float, how: str) -> list[hv.Element]:
    elements: list[hv.Element] = []
    for label, colour, frame in _by_protocol(chosen, scale):
        if frame.empty:
            continue
        elements += [
            hv.Curve(frame, "size", "busbw", label=f"{label}, {how}").opts(
                color=colour, padding=0.1
            ),
            hv.ErrorBars(frame, "size", ["busbw", "below", "above"]).opts(
                **option(colour, matplotlib="edgecolor", bokeh="line_color")
            ),
            hv.Scatter(frame, "size", "busbw").opts(
                color=colour, **options(matplotlib={"s": 20}, bokeh={"size": 5})
            ),
        ]
    return elements


def _bands(chosen: xr.Dataset, scale: float) -> list[hv.Element]:
    elements: list[hv.Element] = []
    for label, colour, frame in _by_protocol(chosen, scale):
        elements += [
            hv.Area(frame, "size", ["low", "high"]).opts(
                alpha=0.12,
                **options(
                    matplotlib={"facecolor": colour, "linewidth": 0},
                    bokeh={"color": colour, "line_alpha": 0},
                ),
            ),
            hv.Curve(frame, "size", "busbw", label=f"{label}, {_HOW['predicted']}").opts(
                color=colour,
                **option("dashed", matplotlib="linestyle", bokeh="line_dash"),
            ),
        ]
    return elements


def _by_protocol(chosen: xr.Dataset, scale: float) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Return label, colour and bandwidths by size of each protocol."""
    columns = {"busbw": _BUSBW, "low": f"{_BUSBW}_low", "high": f"{_BUSBW}_high"}
    for name, label in protocol_labels(chosen).items():
        values = {key: chosen[column].sel(protocol=name).values for key, column in columns.items()}
        frame = pd.DataFrame({"size": chosen["size_bytes"].values / scale, **values}).dropna()
        frame = frame.assign(below=frame.busbw - frame.low, above=frame.high - frame.busbw)
        yield label, protocol_colour(label), frame
