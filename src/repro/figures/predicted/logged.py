"""Runs of a training log: iteration times by kind, measured and predicted parts, explanations."""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd

from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION
from repro.logs.training.runs import KINDS, LoggedRun
from repro.predict.explore.jobs.explain import Measured
from repro.predict.explore.jobs.logged import PARTS, measured_parts, predicted_parts

_KIND_COLOURS = dict(zip(KINDS, (BLUE, GREY, GREEN, PURPLE, VERMILION), strict=True))
_PART_COLOURS = dict(zip(PARTS, (BLUE, VERMILION, ORANGE, GREEN, GREY), strict=True))
_SHOWN_EXPLANATIONS = 8


def iteration_times(run: LoggedRun) -> hv.Overlay:
    """Draw the time of each line of iterations, coloured by kind; the line is the steady median."""
    steps = run.steps.dropna(subset=["time_s"])
    numbers = steps.iteration.fillna(pd.Series(np.arange(1.0, len(steps) + 1), index=steps.index))
    shown = pd.DataFrame({"number": numbers, "seconds": steps.time_s, "kind": steps.kind})
    points = shown.hvplot.scatter(
        "number",
        "seconds",
        by="kind",
        color=[_KIND_COLOURS[kind] for kind in shown.kind.unique()],
        s=200,
        width=860,
        height=340,
    )
    usual = hv.HLine(run.middle("time_s")).opts(color=_KIND_COLOURS["steady"])
    return (points * usual).opts(
        xlabel="iteration",
        ylabel="s per iteration (measured)",
        title=f"{run.tool}: iterations by kind; line: median of steady ones",
        legend_position="right",
        ylim=(0, 1.1 * shown.seconds.max()),
    )


def parts_compared(run: LoggedRun, measured: Measured) -> hv.Overlay:
    """Draw the parts of the measured and the predicted iteration; the line is the 90 % interval.

    A log whose timers do not cover an iteration has one bar without parts.
    """
    one = measured.estimate
    rows = {
        "predicted": predicted_parts(one),
        "measured": measured_parts(run) or {"whole iteration": measured.time_s},
    }
    shown = pd.DataFrame.from_dict(rows, orient="index").fillna(0.0)
    bars = shown.hvplot.barh(
        stacked=True,
        color=[_PART_COLOURS.get(name, SKY_BLUE) for name in shown.columns],
        xlabel="s per iteration",
        ylabel="",
        title="Parts of an iteration (line: 90 % interval of the prediction)",
        legend="right",
        width=860,
        height=200,
    )
    low, high = one.interval_s
    time_s = one.iteration_time_s
    interval = hv.ErrorBars(
        [("predicted", time_s, time_s - low, high - time_s)],
        kdims=["index"],
        vdims=["seconds", "below", "above"],
    )
    return bars * interval.opts(invert_axes=True)


def explanations(measured: Measured) -> hv.Bars:
    """Draw the measured time, the predicted one, and predictions with one change each.

    Changes are those that bring the prediction nearer, best first.
    """
    one = measured.estimate
    changes = measured.explanations[:_SHOWN_EXPLANATIONS]
    predicted = {"as predicted": one.iteration_time_s}
    predicted |= {change.words: change.estimate.iteration_time_s for change in changes}
    shown = pd.DataFrame(
        {"measured": {"measured": measured.time_s}, "predicted": predicted},
        index=["measured", *predicted],
    )
    return shown.iloc[::-1].hvplot.barh(
        stacked=True,
        color=[VERMILION, BLUE],
        xlabel="",
        ylabel="s per iteration",
        title=f"One change at a time ({measured.verdict})",
        legend="right",
        width=860,
        height=90 + 26 * len(shown),
    )
