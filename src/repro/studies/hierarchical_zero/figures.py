"""Schemes of partitioning: throughput, bytes by level of links, memory, and the fastest scheme."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import xarray as xr

from repro.catalog.studies.partitions import read_partition_study
from repro.catalog.systems.clusters import cluster
from repro.figures.palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILION,
    YELLOW,
)
from repro.figures.panels import (
    HEIGHT,
    WIDTH,
    bars,
    bounds,
    cumulative,
    dashed,
    not_run_here,
    options,
    panel_size,
    panels,
)
from repro.figures.published import partition_gain
from repro.results.store import has_runs
from repro.studies.hierarchical_zero.tables import logged_by_level, scheme_table

_COLOURS = (
    BLACK,
    GREY,
    ORANGE,
    YELLOW,
    VERMILION,
    GREEN,
    SKY_BLUE,
    BLUE,
)
_LEVELS = {"package": GREEN, "node": SKY_BLUE, "fabric": VERMILION}
_PHASES = {
    "straggler wait": GREY,
    "gradient sync": VERMILION,
    "parameter all-gather": ORANGE,
}
_STATES = (BLUE, SKY_BLUE, ORANGE, VERMILION, GREEN, PURPLE, GREY)
_NONE, _TIE = "none fits", "within 1 %"
_OTHERS = {_NONE: "#444444", _TIE: "#DDDDDD"}
_AHEAD = 1.01


def throughput_by_gpus(predicted: pd.DataFrame) -> hv.Overlay:
    """Draw model TFLOP/s per GPU by number of GPUs, a line per scheme, predicted.

    Three levels have their 90 % interval. A line begins where memory is enough; the dash-dotted
    line is the peak of the data sheet.
    """
    peak_tflops = 1e-12 * cluster(read_partition_study().predicted.cluster).device.peak_flops
    labels = _labels()
    table = predicted.pivot_table(index="gpus", columns="scheme", values="tflops_per_gpu")
    order = [name for name in labels if name in table]
    lines = (
        table[order]
        .rename(columns=labels)
        .hvplot.line(
            color=[_colours()[name] for name in order],
            logx=True,
            xlabel="GCDs",
            ylabel="TFLOP/s per GPU (predicted; dash-dotted: peak)",
            ylim=(0, 1.05 * peak_tflops),
            group_label="scheme",
            legend="right",
            width=2 * WIDTH,
            height=HEIGHT,
        )
    )
    own = predicted[predicted.scheme == order[-1]]
    band = hv.Area((own.gpus, own.low, own.high), vdims=["low", "high"])
    band = band.opts(color=_colours()[order[-1]], alpha=0.15)
    return lines * band * bounds({BLACK: peak_tflops}, "peak")[0]


def bytes_by_level_bars(moved: pd.DataFrame, title: str) -> hv.Layout:
    """Draw bytes that a rank sends in an iteration, by level of links and by phase.

    There is a bar per scheme; a level is the widest that a group spans.
    """
    large = moved.groupby("scheme").sent_bytes.sum().max() > 1e9
    scale, unit = (1e-9, "GB") if large else (1e-6, "MB")
    drawn = []
    for along, colours in (("level", _LEVELS), ("phase", _PHASES)):
        table = scale * moved.pivot_table(
            index="scheme", columns=along, values="sent_bytes", aggfunc="sum", fill_value=0.0
        )
        named = [name for name in colours if name in table]
        table = table.loc[[name for name in _labels() if name in table.index], named]
        drawn.append(
            bars(
                table.rename(index=_labels()),
                colours,
                title=f"{title}, by {along}",
                ylabel=f"{unit} sent by a rank in an iteration",
                legend=True,
            )
        )
    return panels(drawn)


def memory_bars(held: pd.DataFrame, limit_bytes: float) -> hv.Overlay:
    """Draw memory of a GPU by part, a bar per scheme; the title has the GPU's memory."""
    table = 1e-9 * held.rename(index=_labels())
    return bars(
        table,
        dict(zip(table.columns, _STATES, strict=True)),
        title=f"memory of a GPU (predicted), of {1e-9 * limit_bytes:g} GB",
        ylabel="GB",
        legend=True,
    )


def scheme_map(found: pd.DataFrame) -> hv.Layout:
    """Draw the fastest scheme that fits into memory, by GPUs and rate between nodes.

    There is a panel for each domain, model and number of micro batches. Numbers are the throughput
    over that of the next scheme; boxes are grey where it is less than 1 % more. Pointing at a box
    shows its TFLOP/s.
    """
    labels, colours = _labels(), _colours()
    drawn = []
    for names, rows in found.groupby(["cluster", "model", "micro_batches"], sort=False):
        gpus, ratios = (rows[name].unique().tolist() for name in ("gpus", "link_ratio"))
        x, y = rows.gpus.map(gpus.index), rows.link_ratio.map(ratios.index)
        placed = rows.assign(left=x - 0.5, bottom=y - 0.5, right=x + 0.5, top=y + 0.5, x=x, y=y)
        winner = rows.scheme.where(~(rows.ahead < _AHEAD), _TIE)
        marks: list[hv.Element] = []
        for name in [*labels, _TIE, _NONE]:
            own = placed[winner == name]
            if own.empty:
                continue
            boxes = own[["left", "bottom", "right", "top", "tflops_per_gpu"]].to_numpy()
            colour = {**colours, **_OTHERS}[name]
            marks.append(
                hv.Rectangles(boxes, vdims="TFLOP/s per GPU", label=labels.get(name, name)).opts(
                    **options(
                        matplotlib={"facecolor": colour, "edgecolor": "white"},
                        bokeh={"fill_color": colour, "line_color": "white", "tools": ["hover"]},
                    )
                )
            )
        named = placed[winner.isin(list(labels)) & placed.ahead.notna()]
        texts = named.assign(text=named.ahead.map("{:.2f}".format))
        marks.append(hv.Labels(texts, ["x", "y"], "text").opts(**_small()))
        drawn.append(
            hv.Overlay(marks).opts(
                title="{}, {}, micro batches: {}".format(*names),
                xlabel="GPUs",
                ylabel="rate between nodes, times its own",
                xticks=list(enumerate(map(str, gpus))),
                yticks=[(number, f"{ratio:g}") for number, ratio in enumerate(ratios)],
                show_legend=True,
                legend_position="right",
                **panel_size(),
            )
        )
    return panels(drawn)


def gain_by_choice(sweep: pd.DataFrame) -> hv.Layout:
    """Draw how often each gain results over all settings that the abstract leaves open.

    There are steps for each rate between nodes; the vertical line is the published gain.
    """
    curves = [
        cumulative(rows.gain, f"{ratio:g} times the rate", colour)
        for (ratio, rows), colour in zip(sweep.groupby("link_ratio"), _COLOURS, strict=False)
    ]
    stated = hv.VLine(partition_gain()).opts(color="black", **dashed())
    steps = hv.Overlay([*curves, stated]).opts(
        title="gain of three levels over ZeRO++ (predicted)",
        xlabel="times the throughput",
        ylabel="% of the settings with at most this",
        show_legend=True,
        legend_position="right",
        **panel_size(),
    )
    return panels([steps])


def measured_schemes(results: xr.Dataset) -> hv.Layout:
    """Draw measured throughput, communication and memory of a rank, a bar per scheme.

    Throughput has its 95 % interval and every iteration; communication is by part.
    """
    if not has_runs(results):
        return not_run_here(results)
    table = scheme_table(results)
    times_s = results["iteration_time_s"].mean("rank") / results["time_scale"]
    every = 60 / times_s.squeeze([dim for dim in ("source", "model", "protocol", "gpus")])
    rows = every.sel(scheme=table.index).transpose("scheme", "iteration").values
    table = table.rename(index=_labels())
    named = [f"{name}, {seconds:.2g} s" for name, seconds in table.iteration_s.items()]
    speed = table[["iterations_per_min"]]
    states = table[["weight_mb", "gradient_mb", "adam_state_mb"]]
    states.columns = pd.Index(["weights", "gradients", "Adam's moments"])
    return panels(
        [
            bars(
                speed,
                {"iterations_per_min": BLUE},
                title="throughput (measured)",
                ylabel="iterations per minute at full scale",
                legend=False,
                interval=[table.low, table.high],
                iterations=[rows],
            ).opts(axiswise=True),
            bars(
                table[list(_PHASES)].set_axis(named),
                _PHASES,
                title="waiting and communicating (measured)",
                ylabel="% of the iteration",
                legend=True,
            ).opts(axiswise=True),
            bars(
                states,
                dict(zip(states.columns, _STATES, strict=False)),
                title="states of the rank with most (measured)",
                ylabel="MB",
                legend=True,
            ).opts(axiswise=True),
        ]
    )


def measured_bytes(results: xr.Dataset) -> hv.Layout:
    """Draw `bytes_by_level_bars` of the testbed's communication log."""
    if not has_runs(results):
        return not_run_here(results)
    topology = read_partition_study().testbed.topology
    return bytes_by_level_bars(logged_by_level(results, topology), "logged")


def _labels() -> dict[str, str]:
    return {name: scheme.label for name, scheme in read_partition_study().schemes.items()}


def _colours() -> dict[str, str]:
    return dict(zip(_labels(), _COLOURS, strict=False))


def _small() -> dict[str, object]:
    return options(
        matplotlib={"size": 8, "color": "white"},
        bokeh={"text_font_size": "8pt", "text_color": "white"},
    )
