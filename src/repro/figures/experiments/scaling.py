"""Figures 3, 4 and 7 of the journal paper: iterations by phase and rates of NICs.

Times are full-scale equivalents: testbed seconds divided by the model's time scale.
"""

from collections.abc import Callable

import holoviews as hv
import pandas as pd
import xarray as xr

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
    bounds,
    iteration_points,
    model_labels,
    model_names,
    not_run_here,
    option,
    panel_size,
    panels,
    points_of_a_line,
    protocol_labels,
    published_marks,
    shows_legend,
    stacked_panels,
)
from repro.figures.published import nic_ranges_gbps, shares_percent
from repro.results.metrics import communication_fraction, interval, iteration_time_s
from repro.results.store import has_runs

PHASE_COLOURS = {
    "forward compute": SKY_BLUE,
    "backward compute": BLUE,
    "forward all-to-all": "#F2A6D0",
    "backward all-to-all": PURPLE,
    "straggler wait": YELLOW,
    "gradient sync": VERMILION,
    "optimizer": GREEN,
    "parameter all-gather": ORANGE,
    "other": GREY,
}
_PROTOCOL_COLOURS = {"RDMA": BLUE, "IPoIB": ORANGE, "TCP/IP": VERMILION}
# Dashes for grey print, where these colours look alike.
PROTOCOL_DASHES = {"RDMA": "solid", "IPoIB": "dashed", "TCP/IP": "dotted"}
_SPAN_COLOURS = {"checkpoint": GREY, "validation": PURPLE}
_LANE = 0.08
# Samples in a window of NIC rates, about a tenth of a second. Every second sample starts a window.
_WINDOW = 5


def protocol_colour(label: str) -> str:
    """Return the colour of a protocol by its label; black for protocols of no paper."""
    return _PROTOCOL_COLOURS.get(label, BLACK)


def breakdown(results: xr.Dataset) -> hv.Layout:
    """Draw phases of the mean iteration by GPUs and protocol, a panel per model (3a-d, 4a-d).

    Phases that take no time in any iteration are left out. Points are single iterations, from left
    to right in the order recorded; a line is the 95 % interval of their mean.
    """
    if not has_runs(results):
        return not_run_here(results)
    times = results["phase_time_s"].mean(["iteration", "rank"]) / results["time_scale"]
    times = times.rename(phase="part")
    shown = times["part"].values[(times != 0).any([dim for dim in times.dims if dim != "part"])]
    colours = {part: colour for part, colour in PHASE_COLOURS.items() if part in shown}
    return stacked_panels(times, colours, results)


def share_by_protocol(results: xr.Dataset) -> hv.Layout:
    """Draw the communication fraction by number of GPUs, a line per protocol.

    The line is the mean over models, in weak scaling the largest, because the documents state
    these. Small points are the models, which have the seconds of an iteration.
    """
    if not has_runs(results):
        return not_run_here(results)
    name = results.attrs.get("experiment", "")
    how = "largest" if name == "weak_scaling" else "mean"

    def over_models(share: xr.DataArray) -> xr.DataArray:
        return share.max("model") if how == "largest" else share.mean("model")

    gpus = results["gpus"].values.tolist()
    published = shares_percent(name)
    drawn = protocol_lines(results, "gpus", over_models)
    if marks := [
        (gpus[-1], published[name]) for name in protocol_labels(results) if name in published
    ]:
        drawn.append(published_marks(marks))
    models = ", ".join(model_labels()[name] for name in model_names(results))
    overlay = hv.Overlay(drawn).opts(
        title=f"{how} of {models}",
        xlabel="GPUs",
        ylabel="communication, % of iteration",
        xticks=gpus,
        xlim=(gpus[0] - 0.5, gpus[-1] + 0.5),
        ylim=(0, 100),
        legend_position="right",
        **panel_size(),
    )
    return panels([overlay])


def protocol_lines(
    results: xr.Dataset, by: str, over_models: Callable[[xr.DataArray], xr.DataArray]
) -> list[hv.Element]:
    """Draw the communication fraction with its interval along one dimension, a line per protocol.

    Small points are the models, which have the seconds of an iteration.
    """

    def share(chosen: xr.Dataset) -> xr.DataArray:
        return 100 * communication_fraction(chosen).squeeze("source", drop=True)

    def statistic(chosen: xr.Dataset) -> xr.DataArray:
        return over_models(share(chosen))

    middle = statistic(results)
    ends = interval(results, statistic) if results.sizes["iteration"] > 1 else (middle, middle)
    seconds = iteration_time_s(results).squeeze("source", drop=True)
    every = xr.Dataset({"share": share(results), "iteration_s": seconds})
    drawn: list[hv.Element] = []
    for protocol, label in protocol_labels(results).items():
        models = every.sel(protocol=protocol, drop=True).to_dataframe().dropna().reset_index()
        columns = ["share", "model", "iteration_s"]
        drawn.append(iteration_points(models, by, columns, protocol_colour(label)))
        value, low, high = (one.sel(protocol=protocol).values for one in (middle, *ends))
        frame = pd.DataFrame(
            {by: middle[by].values, "share": value, "below": value - low, "above": high - value}
        )
        drawn += protocol_line(frame.dropna().clip(lower=0), by, "share", label)
    return drawn


def protocol_line(frame: pd.DataFrame, x: str, y: str, label: str) -> list[hv.Element]:
    """Draw a protocol's line with its points.

    Its dashes tell it apart in grey print. `below` and `above` are the distances to the ends of the
    interval.
    """
    colour, dash = protocol_colour(label), PROTOCOL_DASHES.get(label, "solid")
    elements: list[hv.Element] = [
        hv.Curve(frame, x, y, label=label).opts(
            color=colour, **option(dash, matplotlib="linestyle", bokeh="line_dash")
        )
    ]
    if "below" in frame:
        elements += [
            hv.ErrorBars(frame, x, [y, "below", "above"]).opts(
                **option(colour, matplotlib="edgecolor", bokeh="line_color")
            ),
            hv.Scatter(frame, x, [y, "below", "above"], label=label).opts(
                color=colour, **points_of_a_line()
            ),
        ]
    return elements


def received_over_time(results: xr.Dataset) -> hv.Layout:
    """Draw the rate received by one NIC over time at the most GPUs, a panel per model (3e-h, 4e-h).

    The NIC is the first node's. Below the axis, a lane per protocol marks that run's checkpoints
    and validations. Published are the lowest and the highest mean rate of the four models, over
    iterations. Dash-dotted lines are the links' rates.
    """
    if not has_runs(results):
        return not_run_here(results)
    if "rx_full_scale_gbps" not in results:
        return hv.Layout([hv.Text(0.5, 0.5, "no rates over time")])
    chosen, names = results.isel(gpus=-1).squeeze("source", drop=True), model_names(results)
    return panels(
        [
            _received_of(chosen.sel(model=name), legend=shows_legend(number, len(names)))
            for number, name in enumerate(names)
        ]
    )


def _received_of(results: xr.Dataset, *, legend: bool) -> hv.Overlay:
    labels = protocol_labels(results)
    scale = float(results["time_scale"].max())
    curves, ends = [], []
    lanes: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in _SPAN_COLOURS}
    top = float(results["rx_full_scale_gbps"].isel(node=0).quantile(0.999))
    for lane, (protocol, label) in enumerate(labels.items(), start=1):
        run = results.sel(protocol=protocol)
        rate = run["rx_full_scale_gbps"].isel(node=0)
        smooth = rate.rolling(sample=_WINDOW, center=True, min_periods=1).mean()
        frame = pd.DataFrame(
            {
                "time": run["nic_time_s"].values / scale,
                "received": smooth.where(rate.notnull()).values,
            }
        ).dropna()[:: _WINDOW // 2]
        curves += protocol_line(frame, "time", "received", label)
        ends.append(frame["time"].max())
        bottom = -_LANE * lane * top
        for name, start, end in zip(
            *(run[f"span_{field}"].values for field in ("name", "start_s", "end_s")), strict=True
        ):
            if name in _SPAN_COLOURS:
                box = (start / scale, bottom, end / scale, bottom + 0.7 * _LANE * top)
                lanes[name].append(box)
    # A lane's marks are too short to be seen on the time axis of the slowest run: all runs are
    # shown over the time of the middle one.
    last = sorted(ends)[len(ends) // 2]
    rates = link_rates_gbps(results)
    limits = bounds({protocol_colour(name): rate for name, rate in rates.items()}, "link rate")
    marks = [
        hv.Rectangles(boxes, label=name).opts(color=_SPAN_COLOURS[name])
        for name, boxes in lanes.items()
        if boxes
    ]
    ranges = [
        hv.Rectangles([(0, low, max(ends), high)], label=f"{labels[protocol]}, published").opts(
            alpha=0.25,
            color=protocol_colour(labels[protocol]),
            **option(0, matplotlib="linewidth", bokeh="line_width"),
        )
        for protocol, (low, high) in nic_ranges_gbps(results.attrs.get("experiment", "")).items()
        if protocol in labels
    ]
    return hv.Overlay([*ranges, *curves, *marks, *limits]).opts(
        title=model_labels()[results["model"].item()],
        xlabel="time, s at full scale",
        ylabel="received, Gbit/s at full scale",
        show_legend=legend,
        legend_position="right",
        xlim=(0, last),
        ylim=(
            -_LANE * (len(labels) + 0.5) * top if marks else 0.0,
            max([1.15 * top, *(1.05 * rate for rate in rates.values())]),
        ),
        **panel_size(),
    )


def link_rates_gbps(results: xr.Dataset) -> dict[str, float]:
    """Return the rate of a node's link at the most GPUs by protocol label, where it was set."""
    if "link_set_gbps" not in results:
        return {}
    rates = (results["link_set_gbps"] / results["rate_scale"]).isel(level=-1)
    most = rates.max([dim for dim in rates.dims if dim != "protocol"]).dropna("protocol")
    return dict(zip(protocol_labels(most).values(), most.values.tolist(), strict=True))
