"""Open models on today's GPUs: plans by phase, and predictions compared with published runs."""

from dataclasses import fields

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd

from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW
from repro.paths import PUBLISHED
from repro.predict.calibration.validation import predict_runs
from repro.predict.explore.jobs.fused_plans import SPLIT
from repro.predict.fused.iteration import FusedPhases
from repro.predict.tables.reading import read_rows

_COLOURS = {
    "products": BLUE,
    "attention": SKY_BLUE,
    "elements": GREEN,
    "logits": "#117733",
    "recompute": "#332288",
    "tensor parallel": ORANGE,
    "context parallel": YELLOW,
    "expert parallel": VERMILION,
    "replicas": "#882255",
    "messages": PURPLE,
    "host": GREY,
    "bubble": "#DDDDDD",
    "optimizer": "#661100",
    "stragglers": "#444444",
}
_GPU_COLOURS = [BLUE, VERMILION, GREEN, PURPLE, ORANGE]
_PHASES = tuple(one.name for one in fields(FusedPhases))


def plan_phases(best: pd.DataFrame) -> hv.Overlay:
    """Draw iteration time by phase, a bar per plan; the line is its 90 % interval."""
    names = [
        f"{one.dtype} t{one.tp} p{one.pp}x{one.vpp} c{one.cp} e{one.ep} d{one.dp} "
        f"b{one.micro_batch}{' recompute' if one.recompute != 'none' else ''}"
        for one in best[list(SPLIT)].itertuples()
    ]
    shown = best[[f"{name}_s" for name in _PHASES]].set_axis(
        [name.replace("_", " ") for name in _PHASES], axis=1
    )
    shown = shown.loc[:, shown.max() > 0.005 * best.iteration_time_s.max()].set_axis(names)
    bars = shown.iloc[::-1].hvplot.barh(
        stacked=True,
        color=[_COLOURS[name] for name in shown.columns],
        # Bars are horizontal; hvplot does not swap their labels.
        xlabel="iteration time in s",
        ylabel="",
        title="Iteration time by phase (predicted; line: 90 % interval)",
        legend="right",
        width=860,
        height=80 + 34 * len(shown),
    )
    time_s = best.iteration_time_s
    interval = (names, time_s, time_s - best.low_s, best.high_s - time_s)
    return bars * hv.ErrorBars(
        tuple(list(part)[::-1] for part in interval), "index", ["time", "below", "above"]
    )


def slower_by_imbalance(plans: pd.DataFrame) -> hv.Overlay:
    """Draw the iteration time of the best plan by imbalance of experts (`by_imbalance`).

    The band is its 90 % interval.
    """
    band = hv.Area((plans.expert_imbalance, plans.low_s, plans.high_s), vdims=["low", "high"])
    line = plans.hvplot.line(
        "expert_imbalance",
        "iteration_time_s",
        color=_COLOURS["expert parallel"],
        xlabel="tokens of the busiest rank of experts, over the mean",
        ylabel="iteration time in s",
        title="Iteration time by load of the busiest experts (predicted; band: 90 % interval)",
        width=860,
        height=360,
    )
    return band.opts(color=_COLOURS["expert parallel"], alpha=0.2) * line


def published_runs() -> pd.DataFrame:
    """Predict published runs of today's software.

    Returns
    -------
    DataFrame
        One row per run: set, model, gpu, dtype, gpus, `experts` (whether it is a mixture of them),
        published and predicted tokens per second and GPU, and the error in percent of the time.
    """
    rows = read_rows(PUBLISHED / "training_modern.csv")
    predicted_s = predict_runs(rows).time_s.loc[rows.index]
    published = rows.tokens_per_s_per_gpu
    return rows[["set", "model", "gpu", "dtype", "gpus"]].assign(
        experts=rows.experts.notna(),
        published=published,
        predicted=published * rows.iteration_time_s / predicted_s,
        error_pct=100 * (predicted_s / rows.iteration_time_s - 1),
    )


def published_errors(runs: pd.DataFrame) -> hv.Overlay:
    """Draw the error of each predicted time of `published_runs`, a mark per run, by GPU.

    Pointing at a mark shows both throughputs.
    """
    marks = runs.assign(of=np.where(runs.experts, "experts", "dense")).hvplot.scatter(
        "published",
        "error_pct",
        by="gpu",
        hover_cols=["set", "model", "dtype", "gpus", "of", "predicted"],
        s=300,
        alpha=0.6,
        logx=True,
        color=_GPU_COLOURS[: runs.gpu.nunique()],
        xlabel="published tokens per second and GPU",
        ylabel="error of the iteration time, %",
        title="Error of the predicted iteration times of published runs",
        legend="top_right",
        width=860,
        height=420,
    )
    return hv.HLine(0).opts(color="black", alpha=0.5) * marks


def worst_runs(runs: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """Return the rows of `published_runs` with the largest errors."""
    order = np.argsort(-runs.error_pct.abs().to_numpy(), kind="stable")
    shown = ["set", "model", "gpu", "dtype", "gpus", "published", "predicted", "error_pct"]
    return runs.iloc[order[:count]][shown].round(1).reset_index(drop=True)
