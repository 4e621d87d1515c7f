"""Compressed messages, measured: iterations by phase, bytes, and losses by steps and time."""

import holoviews as hv
import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.phases import COMPUTING
from repro.catalog.studies.compression import read_compression_study
from repro.figures.palette import BLACK, BLUE, GREEN, GREY, PURPLE, SKY_BLUE, VERMILION
from repro.figures.panels import (
    bars,
    iteration_points,
    line,
    not_run_here,
    options,
    panel_size,
    panels,
    protocol_labels,
)
from repro.observe.precision import half_width
from repro.results.store import has_runs
from repro.studies.compression.tables import NONE, has_losses, loss_table, time_table

_COLOURS = (BLACK, SKY_BLUE, VERMILION, BLUE, GREEN, PURPLE)
_PHASES = {
    "computing": COMPUTING,
    "stage messages": ("forward receive", "backward receive", "send"),
    "tensor all-reduce": ("tensor all-reduce",),
    "gradient sync": ("gradient sync", "embedding sync"),
    "encode": ("encode",),
    "decode": ("decode",),
    "waiting and other": ("straggler wait", "other"),
}
_PHASE_COLOURS = dict(
    zip(
        _PHASES,
        (BLUE, GREEN, SKY_BLUE, VERMILION, PURPLE, "#F2A6D0", GREY),
        strict=True,
    )
)


def measured_times(results: xr.Dataset) -> hv.Layout:
    """Draw iterations of the testbed by phase, a bar per scheme, a panel per protocol.

    Lines are 95 % intervals, points single iterations.
    """
    if not has_runs(results):
        return not_run_here(results)
    table, labels = time_table(results), protocol_labels(results)
    times_s = results["iteration_time_s"].mean("rank").squeeze(["source", "model", "gpus"])
    every = times_s.transpose("protocol", "scheme", "iteration")
    return panels(
        [
            bars(
                pd.DataFrame(
                    {
                        name: rows.reindex(columns=list(phases), fill_value=0.0).sum(axis=1)
                        for name, phases in _PHASES.items()
                    }
                ).rename(index=_labels()),
                _PHASE_COLOURS,
                title=f"{labels[str(protocol)]} (measured)",
                ylabel="iteration, s on the testbed",
                legend=True,
                interval=[rows.low, rows.high],
                iterations=[every.sel(protocol=protocol, scheme=rows.index).values],
            )
            for protocol, rows in _by_protocol(table)
        ]
    )


def loss_curves(results: xr.Dataset) -> hv.Layout:
    """Draw validation loss above that without compression, by steps and at the end.

    Losses of one seed are compared. Bands and lines are 95 % intervals of the mean over seeds; the
    last panel has the spread of seeds as well.
    """
    if not has_losses(results):
        return not_run_here(results)
    above = results["validation_loss"] - results["validation_loss"].sel(scheme=NONE, drop=True)
    drawn: list[hv.Element] = []
    table = loss_table(results)
    for name in table.index.drop(NONE):
        own = above.sel(scheme=name).transpose("seed", "validated_step")
        mean = own.mean("seed").values
        half = np.array([half_width(values.tolist()) for values in own.values.T])
        at, colour = own["validated_step"].values, _colours()[name]
        band = hv.Area((at, mean - half, mean + half), vdims=["above", "high"])
        drawn.append(band.opts(**_pale(colour)))
        drawn += _curve(at, mean, ("step", "above"), _labels()[name], colour)
    by_step = hv.Overlay(drawn).opts(
        title="validation loss above no compression (measured)",
        xlabel="step",
        ylabel="nats per token",
        show_legend=True,
        legend_position="right",
        **panel_size(),
    )
    spread = table.spread.to_dict()[NONE]
    at_end = bars(
        table.rename(index=_labels())[["above_none"]],
        {"above_none": BLUE},
        title=f"at the end; seeds without compression spread by {spread:.3f}",
        ylabel="nats per token above no compression",
        legend=False,
        interval=[table.low, table.high],
    ).opts(ylim=(None, None))
    return panels([by_step, at_end.opts(axiswise=True)])


def loss_over_time(results: xr.Dataset) -> hv.Layout:
    """Draw validation loss against the time of its steps on the testbed, a panel per protocol.

    Lines are means over seeds; small points are single seeds.
    """
    if not (has_runs(results) and has_losses(results)):
        return not_run_here(results)
    # Some schemes are timed but not trained for losses.
    every = results["validation_loss"].dropna("scheme", how="all")
    losses = every.mean("seed")
    labels = protocol_labels(results)
    drawn = []
    for protocol, rows in _by_protocol(time_table(results)):
        curves: list[hv.Element] = []
        for name, iteration_s in rows.iteration_s.items():
            if name not in losses.scheme:
                continue
            at, colour = losses["validated_step"].values * iteration_s, _colours()[str(name)]
            mean = losses.sel(scheme=name).values
            curves += _curve(at, mean, ("time", "loss"), _labels()[str(name)], colour)
            for seed in every.sel(scheme=name).transpose("seed", "validated_step").values:
                curves.append(iteration_points((at, seed), "time", "loss", colour))
        drawn.append(
            hv.Overlay(curves).opts(
                title=f"{labels[str(protocol)]} (measured)",
                xlabel="s on the testbed",
                ylabel="validation loss, nats per token",
                show_legend=True,
                legend_position="right",
                axiswise=True,
                **panel_size(),
            )
        )
    return panels(drawn)


def spectra_by_step(results: xr.Dataset) -> hv.Layout:
    """Draw effective rank and entropy of gradients and of activations, by step.

    The rank is relative to the largest that a matrix could have. Bands are from the smallest to the
    largest matrix.
    """
    if not has_losses(results):
        return not_run_here(results)
    drawn = []
    for name, label in (
        ("rank_share", "effective rank, of the most"),
        ("entropy_bits", "entropy as integers of 8 bits, bits"),
    ):
        marks: list[hv.Element] = []
        for (kind, own), colour in zip(
            results[name].groupby("kind"), (VERMILION, BLUE), strict=True
        ):
            at, over = own["observed_step"].values, own.transpose("observed_step", "matrix").values
            band = hv.Area((at, over.min(1), over.max(1)), vdims=[name, "high"])
            marks.append(band.opts(**_pale(colour)))
            marks += _curve(at, over.mean(1), ("step", name), str(kind), colour)
        drawn.append(
            hv.Overlay(marks).opts(
                title=f"{label} (measured)",
                xlabel="step",
                ylabel=label,
                show_legend=True,
                legend_position="right",
                axiswise=True,
                **panel_size(),
            )
        )
    return panels(drawn)


def _by_protocol(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    groups = table.groupby(level="protocol", sort=False)
    return [(str(name), rows.droplevel("protocol")) for name, rows in groups]


def _curve(
    at: np.ndarray, values: np.ndarray, axes: tuple[str, str], label: str, colour: str
) -> list[hv.Element]:
    """Draw a line and its points; panels whose axes have the same names share them."""
    return line(pd.DataFrame(dict(zip(axes, (at, values), strict=True))), *axes, label, colour)


def _pale(colour: str) -> dict[str, object]:
    """Return options of a band around a line."""
    return options(
        matplotlib={"facecolor": colour, "alpha": 0.15},
        bokeh={"color": colour, "alpha": 0.15},
    )


def _labels() -> dict[str, str]:
    return {name: one.label for name, one in read_compression_study().schemes.items()}


def _colours() -> dict[str, str]:
    return dict(zip(_labels(), _COLOURS, strict=False))
