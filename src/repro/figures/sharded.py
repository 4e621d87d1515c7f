"""The GPT-350M report's four figures: what the distributed optimizer's collectives take, and cost.

Times are full-scale equivalents: testbed seconds divided by the configuration's time scale.
"""

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import xarray as xr

from repro.figures.panels import HEIGHT, WIDTH, model_labels, model_names, not_run_here, panels
from repro.results.metrics import communication_fraction
from repro.results.sharded import collective_times_s, tokens_per_s_per_gpu
from repro.results.store import has_runs

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLLECTIVE_COLOURS = ("#D55E00", "#E69F00")
_BATCH_COLOURS = ("#000000", "#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7")
# One source, and the one network between the cluster's nodes.
_FIRST = {"source": 0, "protocol": 0}


def collective_times(results: xr.Dataset) -> hv.Layout:
    """Reduce-scatter and all-gather by number of GPUs, a panel per model (the report's figure 1).

    They do not depend on the batch: the smallest is shown.
    """
    if not has_runs(results):
        return not_run_here(results)
    times = 1e3 * collective_times_s(results).isel(_FIRST | {"micro_batch_size": 0}, drop=True)
    drawn = []
    for number, name in enumerate(model_names(results)):
        table = times.sel(model=name, drop=True).transpose("gpus", ...).to_pandas()
        drawn.append(
            table.hvplot.bar(
                stacked=True,
                color=list(_COLLECTIVE_COLOURS),
                title=model_labels()[name],
                xlabel="GPUs",
                ylabel="ms at full scale",
                legend="top_left" if number == 0 else False,
                width=WIDTH,
                height=HEIGHT,
            )
        )
    return panels(drawn)


def share_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Communication's share of an iteration, a line per micro batch, a panel per model (figures 2
    and 3)."""
    if not has_runs(results):
        return not_run_here(results)
    share = 100 * communication_fraction(results)
    return _lines(share, "communication, % of iteration", legend="top_left")


def throughput_by_gpus(results: xr.Dataset) -> hv.Layout:
    """Tokens a second and GPU, a line per micro batch, a panel per model (figure 4)."""
    if not has_runs(results):
        return not_run_here(results)
    tokens = tokens_per_s_per_gpu(results)
    return _lines(tokens, "tokens/s per GPU at full scale", legend="top_right")


def _lines(values: xr.DataArray, label: str, *, legend: str) -> hv.Layout:
    shown = values.isel(_FIRST, drop=True)
    drawn = []
    for number, name in enumerate(model_names(values)):
        frame = shown.sel(model=name, drop=True).to_series().unstack("micro_batch_size", sort=False)
        frame = frame.rename(index=str, columns=str).rename_axis("GPUs")
        drawn.append(
            frame.hvplot.line(
                color=list(_BATCH_COLOURS[: len(frame.columns)]),
                title=model_labels()[name],
                xlabel="GPUs",
                ylabel=label,
                ylim=(0, 1.08 * float(shown.max())),
                group_label="micro batch",
                value_label="value",
                legend=legend if number == len(model_names(values)) - 1 else False,
                width=WIDTH,
                height=HEIGHT,
            )
        )
    return panels(drawn)
