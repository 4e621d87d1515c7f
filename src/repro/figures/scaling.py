"""Figures 3 and 4 of the journal paper: where iterations spend their time, and what NICs carry.

Times are full-scale equivalents: testbed seconds divided by the model's time scale.
"""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd
import xarray as xr

from repro.figures.panels import (
    HEIGHT,
    WIDTH,
    model_labels,
    model_names,
    not_run_here,
    panels,
    protocol_labels,
    stacked_panels,
)
from repro.results.store import has_runs

# Okabe and Ito's palette, which colour-blind readers can tell apart.
PHASE_COLOURS = {
    "forward compute": "#56B4E9",
    "backward compute": "#0072B2",
    "forward all-to-all": "#F2A6D0",
    "backward all-to-all": "#CC79A7",
    "straggler wait": "#F0E442",
    "gradient sync": "#D55E00",
    "optimizer": "#009E73",
    "parameter all-gather": "#E69F00",
    "other": "#999999",
}
PROTOCOL_COLOURS = {"RDMA": "#0072B2", "IPoIB": "#E69F00", "TCP/IP": "#D55E00"}
SPAN_COLOURS = {"checkpoint": "#999999", "validation": "#CC79A7"}
_LANE = 0.08
# NIC rates are shown over windows of this many samples, about a tenth of a second.
_WINDOW = 5


def breakdown(results: xr.Dataset) -> hv.Layout:
    """Stacked phases of the mean iteration by GPUs and protocol, a panel per model (3a-d, 4a-d).

    Phases that take no time in any of them are left out.
    """
    if not has_runs(results):
        return not_run_here(results)
    times = results["phase_time_s"].mean(["iteration", "rank"]) / results["time_scale"]
    times = times.rename(phase="part")
    shown = times["part"].values[(times != 0).any([dim for dim in times.dims if dim != "part"])]
    colours = {part: colour for part, colour in PHASE_COLOURS.items() if part in shown}
    return stacked_panels(times, colours)


def received_over_time(results: xr.Dataset) -> hv.Layout:
    """Rate received by the first node's NIC at the most GPUs, a panel per model (3e-h, 4e-h).

    Below the axis, a lane per protocol marks that run's checkpoints and validations.
    """
    if not has_runs(results):
        return not_run_here(results)
    if "rx_full_scale_gbps" not in results:
        return hv.Layout([hv.Text(0.5, 0.5, "no rates over time")])
    chosen = results.isel(gpus=-1).squeeze("source", drop=True)
    return panels(
        [
            _received_of(chosen.sel(model=name), legend=number == 0)
            for number, name in enumerate(model_names(results))
        ]
    )


def _received_of(results: xr.Dataset, *, legend: bool) -> hv.Overlay:
    labels = protocol_labels(results)
    scale = float(results["time_scale"].max())
    runs, lanes = [], []
    top = float(results["rx_full_scale_gbps"].isel(node=0).quantile(0.999))
    for lane, (protocol, label) in enumerate(labels.items(), start=1):
        run = results.sel(protocol=protocol)
        rate = run["rx_full_scale_gbps"].isel(node=0)
        smooth = rate.rolling(sample=_WINDOW, center=True, min_periods=1).mean()
        frame = pd.DataFrame(
            {
                "time": run["nic_time_s"].values / scale,
                "received": smooth.where(rate.notnull()).values,
                "protocol": label,
            }
        )
        runs.append(frame.dropna())
        bottom = -_LANE * lane * top
        for name, start, end in zip(
            *(run[f"span_{field}"].values for field in ("name", "start_s", "end_s")), strict=True
        ):
            if name in SPAN_COLOURS:
                box = (start / scale, bottom, end / scale, bottom + 0.7 * _LANE * top)
                lanes.append((*box, name))
    # A lane's marks are too short to be seen on the time axis of the slowest run: all runs are
    # shown over the time of the middle one.
    ends = sorted(frame["time"].max() for frame in runs)
    curves = pd.concat(runs).hvplot.line(
        x="time",
        y="received",
        by="protocol",
        color=[PROTOCOL_COLOURS[label] for label in labels.values()],
        title=model_labels()[results["model"].item()],
        xlabel="time, s at full scale",
        ylabel="received, Gbit/s at full scale",
        legend="top_right" if legend else False,
        xlim=(0, ends[len(ends) // 2]),
        ylim=(-_LANE * (len(labels) + 0.5) * top, 1.15 * top),
        width=WIDTH,
        height=HEIGHT,
    )
    marks = hv.Rectangles(lanes, vdims="span").opts(
        color=hv.dim("span").categorize(SPAN_COLOURS, default="white")
    )
    return curves * marks
