"""Figures 3 and 4 of the journal paper: where iterations spend their time, and what NICs carry.

Times are full-scale equivalents: testbed seconds divided by the model's time scale.
"""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models import read_models
from repro.catalog.protocols import read_protocols
from repro.results.store import has_runs, why_not_run

# Okabe and Ito's palette, which colour-blind readers can tell apart.
PHASE_COLOURS = {
    "forward compute": "#56B4E9",
    "backward compute": "#0072B2",
    "straggler wait": "#F0E442",
    "gradient sync": "#D55E00",
    "optimizer": "#009E73",
    "other": "#999999",
}
PROTOCOL_COLOURS = {"RDMA": "#0072B2", "IPoIB": "#E69F00", "TCP/IP": "#D55E00"}
SPAN_COLOURS = {"checkpoint": "#999999", "validation": "#CC79A7"}
_WIDTH, _HEIGHT = 460, 320
_LANE = 0.08
_FIGURE_SIZE = 190
# NIC rates are shown over windows of this many samples, about a tenth of a second.
_WINDOW = 5


def breakdown(results: xr.Dataset) -> hv.Layout:
    """Stacked phases of the mean iteration by GPUs and protocol, a panel per model (3a-d, 4a-d)."""
    if not has_runs(results):
        return not_run_here(results)
    return _panels(
        [
            # The first panel's legend serves all.
            _breakdown_of(results.sel(model=name), legend=number == 0)
            for number, name in enumerate(_models(results))
        ]
    )


def _breakdown_of(results: xr.Dataset, *, legend: bool) -> hv.Element:
    name = results["model"].item()
    times = results["phase_time_s"].mean(["iteration", "rank"]).squeeze("source", drop=True)
    frame = (1e3 * times / results["time_scale"].squeeze("source", drop=True)).rename("ms")
    table = frame.transpose("gpus", "protocol", "phase").to_dataframe()["ms"].unstack("phase")
    table = table.dropna()[list(PHASE_COLOURS)]
    labels = protocol_labels(results)
    table.index = [f"{gpus} {labels[protocol]}" for gpus, protocol in table.index]
    table.index.name = "GPUs and protocol"
    return table.hvplot.bar(
        stacked=True,
        color=list(PHASE_COLOURS.values()),
        title=read_models()[name].label,
        xlabel="",
        ylabel="iteration, ms at full scale",
        rot=60,
        legend="top_left" if legend else False,
        width=_WIDTH,
        height=_HEIGHT,
    )


def received_over_time(results: xr.Dataset) -> hv.Layout:
    """Rate received by the first node's NIC at the most GPUs, a panel per model (3e-h, 4e-h).

    Below the axis, a lane per protocol marks that run's checkpoints and validations.
    """
    if not has_runs(results):
        return not_run_here(results)
    if "rx_full_scale_gbps" not in results:
        return hv.Layout([hv.Text(0.5, 0.5, "predicted: no rates over time")])
    chosen = results.isel(gpus=-1).squeeze("source", drop=True)
    return _panels(
        [
            _received_of(chosen.sel(model=name), legend=number == 0)
            for number, name in enumerate(_models(results))
        ]
    )


def _received_of(results: xr.Dataset, *, legend: bool) -> hv.Overlay:
    labels = protocol_labels(results)
    scale = float(results["time_scale"].max())
    runs, lanes = [], []
    top = float(results["rx_full_scale_gbps"].isel(node=0).quantile(0.999))
    for lane, (protocol, label) in enumerate(labels.items(), start=1):
        run = results.sel(protocol=protocol)
        frame = pd.DataFrame(
            {
                "time": run["nic_time_s"].values / scale,
                "received": _smooth(run["rx_full_scale_gbps"].isel(node=0)),
                "protocol": label,
            }
        )
        runs.append(frame.dropna())
        bottom = -_LANE * lane * top
        for name, start, end in zip(
            run["span_name"].values, run["span_start_s"], run["span_end_s"], strict=True
        ):
            if name in SPAN_COLOURS:
                span = (
                    float(start) / scale,
                    bottom,
                    float(end) / scale,
                    bottom + 0.7 * _LANE * top,
                )
                lanes.append((*span, name))
    # A lane's marks are too short to be seen on the time axis of the slowest run: all runs are
    # shown over the time of the middle one.
    ends = sorted(frame["time"].max() for frame in runs)
    curves = pd.concat(runs).hvplot.line(
        x="time",
        y="received",
        by="protocol",
        color=[PROTOCOL_COLOURS[label] for label in labels.values()],
        title=read_models()[results["model"].item()].label,
        xlabel="time, s at full scale",
        ylabel="received, Gbit/s at full scale",
        legend="top_right" if legend else False,
        xlim=(0, ends[len(ends) // 2]),
        ylim=(-_LANE * (len(labels) + 0.5) * top, 1.15 * top),
        width=_WIDTH,
        height=_HEIGHT,
    )
    marks = hv.Rectangles(lanes, vdims="span").opts(
        color=hv.dim("span").categorize(SPAN_COLOURS, default="white")
    )
    return curves * marks


def _smooth(rate: xr.DataArray) -> np.ndarray:
    return (
        rate.rolling(sample=_WINDOW, center=True, min_periods=1).mean().where(rate.notnull()).values
    )


def _panels(panels: list[hv.Element]) -> hv.Layout:
    layout = hv.Layout(panels).cols(2)
    if hv.Store.current_backend == "matplotlib":
        layout.opts(fig_size=_FIGURE_SIZE, sublabel_format="", backend="matplotlib")
    return layout


def not_run_here(results: xr.Dataset) -> hv.Layout:
    """The reasons why nothing was, in the figure's place."""
    return hv.Layout([hv.Text(0.5, 0.5, f"not run here: {why_not_run(results)}")])


def _models(results: xr.Dataset) -> list[str]:
    return [str(name) for name in results["model"].values]


def protocol_labels(results: xr.Dataset) -> dict[str, str]:
    """The names in figures of the protocols that were run, by their names in datasets."""
    known = read_protocols()
    return {str(name): known[str(name)].label for name in results["protocol"].values}
