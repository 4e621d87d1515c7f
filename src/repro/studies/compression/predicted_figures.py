"""Compressed collectives at full scale: gains by network and setting, parts, break-even."""

import holoviews as hv
import numpy as np
import pandas as pd

from repro.catalog.studies.compressed_training import read_compressed_training
from repro.catalog.systems.gpus import gpu
from repro.figures.palette import BLACK, BLUE, GREEN, GREY, SKY_BLUE, VERMILION
from repro.figures.panels import (
    bars,
    cumulative,
    dashed,
    options,
    panel_size,
    panels,
    published_marks,
)
from repro.figures.published import compression_gains_percent
from repro.studies.compression.predicted import (
    HYBRID,
    NAIVE,
    NONE,
    coding_rate_bytes_per_s,
    encoding,
    ring_rates_gbytes_per_s,
    speed_up_map,
)

_SCHEMES = {NAIVE: VERMILION, HYBRID: BLUE}
_PARTS = {
    "computing": GREY,
    "bubble and stragglers": "#DDDDDD",
    "tensor": VERMILION,
    "pipeline": GREEN,
    "gradients": BLUE,
    "parameters": SKY_BLUE,
    "coding": BLACK,
}
_CURVES = (SKY_BLUE, BLUE, VERMILION, GREEN)
_APART = 0.15


def gain_by_link(predicted: pd.DataFrame) -> hv.Overlay:
    """Draw the throughput that compression gains in percent, by network between nodes.

    Lines are 90 % intervals; diamonds are published for the first network. A network's name has the
    seconds of its iteration without compression.
    """
    links = list(predicted.link.unique())
    places, drawn = np.arange(len(links)), []
    for (scheme, colour), aside in zip(_SCHEMES.items(), (-_APART, _APART), strict=True):
        rows = predicted[predicted.scheme == scheme].set_index("link").loc[links]
        points = (places + aside, rows.gain_pct)
        spread = (rows.gain_pct - rows.low, rows.high - rows.gain_pct)
        drawn += [
            hv.ErrorBars((*points, *spread), "at", ["gain", "below", "above"]),
            hv.Scatter(points, "at", "gain", label=scheme).opts(color=colour, **_large()),
        ]
    stated = compression_gains_percent()
    marks = [
        (aside, value)
        for scheme, aside in zip(_SCHEMES, (-_APART, _APART), strict=True)
        for value in stated[scheme]
    ]
    base_s = predicted[predicted.scheme == NONE].set_index("link")[list(_PARTS)].sum(axis=1)
    named = [f"{link}\n{base_s[link]:.1f} s" for link in links]
    return hv.Overlay([*drawn, hv.HLine(0).opts(color=GREY), published_marks(marks)]).opts(
        title="compression's gain (predicted)",
        xlabel="network, and an iteration without compression",
        ylabel="throughput gained, %",
        xticks=list(enumerate(named)),
        xlim=(-0.6, len(links) - 0.4),
        show_legend=True,
        legend_position="right",
        **panel_size(),
    )


def parts_by_scheme(predicted: pd.DataFrame) -> hv.Layout:
    """Draw seconds of an iteration by part, a bar per scheme, a panel per network.

    Coding is the time that encoding and decoding add.
    """
    return panels(
        [
            bars(
                rows.set_index("scheme")[list(_PARTS)],
                _PARTS,
                title=str(link),
                ylabel="seconds per iteration (predicted)",
                legend=True,
            )
            for link, rows in predicted.groupby("link", sort=False)
        ]
    )


def gain_by_setting(sweep: pd.DataFrame, along: str) -> hv.Layout:
    """Draw how often each gain results over all settings that the abstract leaves open.

    There is a panel for naive and for hybrid, with steps for each value of one field; vertical
    lines are published.
    """
    stated, drawn = compression_gains_percent(), []
    for scheme in _SCHEMES:
        marks: list[hv.Element] = []
        for (value, rows), colour in zip(sweep.groupby(along), _CURVES, strict=False):
            label = f"{along.replace('_', ' ')} {value:g}"
            marks.append(cumulative(rows[scheme], label, colour))
        marks += [hv.VLine(value).opts(color="black", **dashed()) for value in stated[scheme]]
        drawn.append(
            hv.Overlay(marks).opts(
                title=f"{scheme}: gain (predicted)",
                xlabel="throughput gained, %",
                ylabel="% of the settings with at most this",
                show_legend=True,
                legend_position="right",
                **panel_size(),
            )
        )
    return panels(drawn)


def break_even_maps() -> hv.Layout:
    """Draw how many times as fast a large collective is when it is encoded, predicted.

    Axes are the bus bandwidth of its ring and the rate of coding; there is a panel for each rate of
    the study's codec that shortens values of 16 bits. Above the line compression pays; vertical
    lines are rings of the base plan, horizontal ones the codec on several GPUs.
    """
    study = read_compressed_training()
    codec, links, whole = (
        study.codecs[study.codec],
        ring_rates_gbytes_per_s(),
        study.base.message_bits,
    )
    drawn = []
    for bits in (bits for bits in codec.rates if bits < whole):
        times = speed_up_map(bits / whole)
        link, coding = times.link.values, times.coding.values
        grid = (link, coding, np.log2(times.values))
        marks: list[hv.Element] = [
            hv.QuadMesh(grid, ["link", "coding"], "log2").opts(cmap="RdBu", clim=(-4, 4)),
            hv.Curve((link, link / (1 - bits / whole)), "link", "coding").opts(color="black"),
        ]
        for name, rate in links.items():
            text = hv.Text(rate, coding[-3], name, rotation=90, halign="right", valign="top")
            marks += [hv.VLine(rate).opts(color="#666666", **dashed()), text]
        # Labels of the slowest and the fastest; the other lines are between these.
        first, *_, last = study.break_even_gpus
        places = {first: "top", last: "bottom"}
        for name in study.break_even_gpus:
            at = 1e-9 * coding_rate_bytes_per_s(encoding(codec, bits, gpu(name)))
            marks.append(hv.HLine(at).opts(color=GREEN, **dashed()))
            if name in places:
                label = gpu(name).label.split("-")[0]
                marks.append(hv.Text(link[1], at, label, halign="left", valign=places[name]))
        drawn.append(
            hv.Overlay(marks).opts(
                title=f"{codec.label} at {bits:g} of {whole} bits",
                xlabel="bus bandwidth, GB/s",
                ylabel="encoding and decoding, GB/s",
                xlim=(link[0], link[-1]),
                ylim=(coding[0], coding[-1]),
                show_legend=False,
                **panel_size(logx=True, logy=True),
            )
        )
    return panels(drawn)


def _large() -> dict[str, object]:
    return options(matplotlib={"s": 60}, bokeh={"size": 9})
