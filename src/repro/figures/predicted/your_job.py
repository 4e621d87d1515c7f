"""Estimates of one training job: memory by pipeline stage, iteration by phase, and a verdict."""

import textwrap
from collections.abc import Sequence

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import pandas as pd

from repro.figures.palette import BLACK, BLUE, GREY, ORANGE, PURPLE, VERMILION, YELLOW
from repro.figures.panels import MEMORY_COLOURS, dashed
from repro.predict.explore.jobs.estimate import (
    FITS,
    PARTS,
    Change,
    JobEstimate,
    by_phase,
    cheapest_fixes,
)
from repro.predict.explore.jobs.explain import Measured

_MEMORY_COLOURS = {**MEMORY_COLOURS, "fragmentation": "#DDDDDD"}
_PHASE_COLOURS = {
    "compute": BLUE,
    "data parallel": "#882255",
    "tensor parallel": ORANGE,
    "pipeline parallel": PURPLE,
    "context parallel": YELLOW,
    "expert parallel": VERMILION,
    "pipeline bubble": "#DDDDDD",
    "host launches": GREY,
    "optimizer": "#661100",
    "stragglers": "#444444",
}
_GIB = 2**30
_WIDTH, _HEIGHT, _ROW_HEIGHT, _MARGIN = 860, 360, 40, 110
_LABEL = 28  # characters per line of a label
# Longest bar as a multiple of the job's iteration: TCP/IP may take a hundred times as long.
_LONGEST = 3.0


def memory_by_stage(one: JobEstimate, width: int | None = _WIDTH) -> hv.Overlay:
    """Draw memory by part, a bar per pipeline stage; the dashed line is the GPU's memory.

    The last part is the largest fragmentation of the allocator: without it a bar ends at the
    interval's low end, with it at the high end. Without a width, the figure is as wide as its
    place.
    """
    stages = one.stages
    parts = stages[[*PARTS, "framework"]].assign(fragmentation=stages.high - stages.low) / _GIB
    there = one.job.device.memory_bytes / _GIB
    shown = parts.set_axis(pd.Index(stages.stage.astype(str), name="pipeline stage"))
    drawn = shown.rename(columns=lambda name: name.replace("_", " ")).hvplot.bar(
        stacked=True,
        color=[_MEMORY_COLOURS[str(name)] for name in parts],
        title=f"Memory by pipeline stage (predicted; dashed: memory of {one.job.device.label})",
        xlabel="pipeline stage",
        ylabel="GiB",
        group_label="part",
        value_label="memory",
        legend="right",
        rot=0,
        **_across(width),
        height=_HEIGHT,
    )
    limit = hv.HLine(there).opts(color=BLACK, **dashed())
    highest = max(there, stages.high.max() / _GIB)
    return (drawn * limit).redim.range(memory=(0, 1.08 * highest))


def iteration_by_network(
    one: JobEstimate, networks: Sequence[Change], width: int | None = _WIDTH
) -> hv.Overlay:
    """Draw the iteration by phase in seconds, a bar for the job and one per other network.

    Lines are 90 % intervals. Longer bars are cut off at three times the job's iteration; labels
    state the time of each. Without a width, the figure is as wide as its place.
    """
    rows = {f"this job, NICs of {one.job.nic_gbps:g} Gbit/s per node": one}
    rows |= {change.words: change.estimate for change in networks}
    names = [
        textwrap.fill(f"{words}: {other.iteration_time_s:.3g} s", _LABEL)
        for words, other in reversed(rows.items())
    ]
    ordered = list(rows.values())[::-1]
    longest = 1.05 * max(other.interval_s[1] for other in ordered)
    limit = min(longest, max(_LONGEST * one.iteration_time_s, 1.05 * one.interval_s[1]))
    cut = f"; cut at {limit:.3g} s" if limit < longest else ""
    phases = pd.DataFrame([by_phase(other) for other in ordered], index=names)
    shown = phases.loc[:, phases.any()].rename_axis("network")
    drawn = shown.hvplot.barh(
        stacked=True,
        color=[_PHASE_COLOURS[phase] for phase in shown.columns],
        title=f"Iteration by phase, s (predicted; line: 90 % interval{cut})",
        xlabel="",
        ylabel="",
        group_label="phase",
        value_label="time",
        legend="right",
        **_across(width),
        height=_MARGIN + _ROW_HEIGHT * len(shown),
    )
    times = [other.iteration_time_s for other in ordered]
    below = [other.iteration_time_s - other.interval_s[0] for other in ordered]
    above = [other.interval_s[1] - other.iteration_time_s for other in ordered]
    ends = hv.ErrorBars((names, times, below, above), "network", ["time", "below", "above"])
    return (drawn * ends).redim.range(time=(0, limit))


def changes_table(changes: Sequence[Change], one: JobEstimate) -> pd.DataFrame:
    """Return the iteration time and throughput of each change, and its gain over the job."""
    base = one.tokens_per_s_per_gpu
    return pd.DataFrame(
        {
            "iteration, s": [change.estimate.iteration_time_s for change in changes],
            "tokens/s per GPU": [change.estimate.tokens_per_s_per_gpu for change in changes],
            "difference, %": [
                100 * (change.estimate.tokens_per_s_per_gpu / base - 1) for change in changes
            ],
        },
        index=pd.Index([change.words for change in changes], name="change"),
    )


def verdict(one: JobEstimate, measured: Measured | None = None) -> str:
    """Return lines: memory, expected iteration and throughput, and a measurement compared."""
    job, (low, high) = one.job, one.interval_s
    memory_low, memory_high = one.stages.low.max() / _GIB, one.stages.high.max() / _GIB
    phases = by_phase(one)
    longest = max((name for name in phases if name != "compute"), key=lambda name: phases[name])
    sentences = [
        f"Predicted for {job.label} on {job.gpus} {job.device.label}: {one.memory_verdict}, with "
        f"{memory_low:.1f} to {memory_high:.1f} of {job.device.memory_bytes / _GIB:.1f} GiB on the "
        "GPU that needs most."
    ]
    if not job.known:
        sentences.append("The GPU is a data sheet of your own: not calibrated, a wider interval.")
    if one.memory_verdict != FITS:
        fixes = cheapest_fixes(one, 1)
        sentences.append(
            f"The cheapest change that makes it fit: {fixes[0].words}."
            if fixes
            else "No change of one or two sizes makes it fit."
        )
    sentences.append(
        f"An iteration takes {one.iteration_time_s:.3g} s (90 % interval {low:.3g} to {high:.3g} "
        f"s): {one.tokens_per_s_per_gpu:.0f} tokens/s per GPU, MFU {100 * one.mfu:.0f} % of "
        f"{one.peak_flops / 1e12:.0f} TFLOP/s (dense {job.precision}). Computing takes "
        f"{100 * phases['compute'] / one.iteration_time_s:.0f} % of it; next is {longest}, "
        f"{100 * phases[longest] / one.iteration_time_s:.0f} %."
    )
    if measured is not None:
        sentences.append(f"The measured {measured.time_s:.3g} s are {measured.verdict}.")
        if measured.verdict != "as expected" and measured.explanations:
            nearest = measured.explanations[0]
            sentences.append(
                f"The nearest explanation is {nearest.words}: "
                f"{nearest.estimate.iteration_time_s:.3g} s."
            )
    return "\n".join(sentences)


def _across(width: int | None) -> dict[str, object]:
    """Return hvplot's options for a width in pixels, or for all of the place."""
    return {"responsive": True} if width is None else {"width": width}
