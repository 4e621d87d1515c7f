"""Serving, predicted: operators on a roofline, latency against throughput, memories."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd

from repro.catalog.systems.gpus import Gpu
from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION
from repro.predict.fused.run import peak_flops

_BOUND_COLOURS = {
    "compute": BLUE,
    "memory": GREEN,
    "network": VERMILION,
    "launch": GREY,
}
_PHASE_COLOURS = {"prefill": ORANGE, "decode": BLUE}
_COLOURS = [BLUE, VERMILION, GREEN, PURPLE]
# Operators with labels on a roofline; the others are close to these.
_NAMED = ("MLP up", "attention", "logits", "element-wise")
_INTENSITIES = np.geomspace(0.1, 1e5, 121)


def roofline(operators: pd.DataFrame, device: Gpu, precision: str) -> hv.Overlay:
    """Draw FLOP/s of each operator against its FLOPs per byte of memory, under the GPU's peaks.

    Collectives are left out: they move no memory of their own.
    """
    peak = peak_flops(device, precision)
    roof = np.minimum(_INTENSITIES * device.memory_gbytes_per_s * 1e9, peak) / 1e12
    limit = pd.DataFrame({"intensity": _INTENSITIES, "rate": roof}).hvplot.line(
        "intensity", "rate", color="black", label="peaks", width=860, height=460
    )
    marks = operators.dropna(subset=["intensity"]).assign(rate=operators.rate / 1e12)
    named = marks[marks.operator.isin(_NAMED)]
    points = marks.hvplot.scatter(
        "intensity",
        "rate",
        by="phase",
        color=[_PHASE_COLOURS[name] for name in marks.phase.unique()],
        s=60,
        hover_cols=["operator", "bound"],
    )
    names = hv.Labels(named, ["intensity", "rate"], "operator").opts(
        hv.opts.Labels(fontsize=7, horizontalalignment="left", verticalalignment="top")
        if hv.Store.current_backend == "matplotlib"
        else hv.opts.Labels(text_font_size="7pt", text_align="left", text_baseline="top")
    )
    return (limit * points * names).opts(
        logx=True,
        logy=True,
        xlabel="FLOPs per byte of memory",
        ylabel="TFLOP/s (predicted)",
        title=f"Operators on {device.label}, {precision}",
        legend_position="bottom_right",
    )


def operator_shares(operators: pd.DataFrame) -> hv.Bars:
    """Draw the fraction of each operator in its phase, coloured by the limiting resource.

    The name of a phase has its seconds.
    """
    phase_s = operators.groupby("phase").time_s.sum()
    phases = operators.phase.map(lambda phase: f"{phase} ({phase_s[phase]:.3g} s): ")
    table = operators.assign(name=phases + operators.operator)
    wide = table.pivot_table(index="name", columns="bound", values="share_pct", sort=False)
    wide = wide.reindex(table.name.iloc[::-1])
    shown = [name for name in _BOUND_COLOURS if name in wide.columns]
    return wide[shown].hvplot.barh(
        stacked=True,
        color=[_BOUND_COLOURS[name] for name in shown],
        xlabel="",
        ylabel="% of its phase (predicted)",
        title="Operators by the resource that limits them",
        legend="right",
        width=860,
        height=80 + 22 * len(wide),
    )


def latency_throughput(plans: pd.DataFrame, title: str) -> hv.Overlay:
    """Draw tokens per second and GPU against the time of a token.

    All plans are grey, the Pareto-optimal ones have the colour of their precision. Plans are
    points: none lies between two.
    """
    shown = plans.assign(output_token_ms=1e3 * plans.output_token_s)
    every = shown.hvplot.scatter(
        "output_token_ms",
        "tokens_per_s_per_gpu",
        color="#BBBBBB",
        s=60,
        width=860,
        height=440,
        hover_cols=["precision", "tp", "pp", "ep", "batch"],
    )
    front = shown[shown.best].sort_values("output_token_ms")
    marks = front.hvplot.scatter(
        "output_token_ms",
        "tokens_per_s_per_gpu",
        by="precision",
        color=_COLOURS[: front.precision.nunique()],
        hover_cols=["tp", "pp", "ep", "batch"],
        s=300,
    )
    return (every * marks).opts(
        logx=True,
        xlabel="time per output token in ms (predicted)",
        ylabel="tokens/s/GPU",
        title=f"{title}; coloured: Pareto-optimal",
    )


def latency_by_memory(memories: pd.DataFrame, title: str) -> hv.Bars:
    """Draw time per output token by memory; plans with a star do not fit."""
    names = memories.memory + np.where(memories.fits, "", " *")
    shown = pd.DataFrame({"ms": 1e3 * memories.output_token_s.to_numpy()}, index=names)
    return shown.hvplot.bar(
        y="ms",
        color=BLUE,
        logy=True,
        ylim=(0.5 * shown.ms.min(), 2 * shown.ms.max()),
        xlabel="",
        ylabel="time per output token in ms",
        title=title,
        width=860,
        height=340,
    )
