"""Training jobs on other clusters: predicted phases, memory, links and best plans.

Figures take rows of `repro.predict.explore.jobs.plans.best_plans`, of one job or of several
(`compare`).
"""

from collections.abc import Callable, Mapping

import holoviews as hv
import hvplot.pandas  # noqa: F401  (registers .hvplot)
import numpy as np
import pandas as pd
from pandas.io.formats.style import Styler

from repro.figures.experiments.every import Figure, figure
from repro.figures.experiments.scaling import PHASE_COLOURS
from repro.figures.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILION, YELLOW
from repro.figures.panels import limit_marks
from repro.predict.explore.jobs.plans import PaperJob, best_plans, choose_job, describe
from repro.predict.step.quantities import MEMORY, PHASES

_COLOURS = {
    **PHASE_COLOURS,
    "recompute": "#332288",
    "tensor parallel": ORANGE,
    "forward receive": PURPLE,
    "pipeline bubble": "#DDDDDD",
    "parameter all gather": "#882255",
    "embedding sync": "#661100",
    "weights": BLUE,
    "gradients": VERMILION,
    "optimizer states": GREEN,
    "activations": SKY_BLUE,
    "logits": YELLOW,
    "framework": GREY,
    "average": BLUE,
}
_WIDTH, _ROW_HEIGHT, _MARGIN = 760, 26, 110
_SCENARIO = "scenario"
# Jobs that differ in the cluster and its protocol only: name, cluster, protocol, GPUs.
_REFERENCES = {
    "cluster A, RDMA, 8 GPUs": ("pinnacles", "rdma", 8),
    "cluster A, IPoIB, 8 GPUs": ("pinnacles", "ipoib", 8),
    "cluster A, TCP/IP, 8 GPUs": ("pinnacles", "tcp", 8),
    "cluster B, 16 GPUs": ("cluster-b", "fabric", 16),
    "DGX A100, 16 GPUs": ("dgx-a100", "fabric", 16),
    "DGX H100, 16 GPUs": ("dgx-h100", "fabric", 16),
    "DGX B200, 16 GPUs": ("dgx-b200", "fabric", 16),
}
_MODEL, _BATCH = "gpt2-large", 64
_COMPUTING = ("forward_compute", "backward_compute", "recompute", "optimizer")
# Number of plans of a job on the exported page.
_SHOWN = 6


def reference_jobs() -> dict[str, PaperJob]:
    """Return the named scenarios: GPT-2-Large, global batch 64, on several clusters."""
    return {
        name: choose_job(_MODEL, cluster, protocol, gpus, _BATCH)
        for name, (cluster, protocol, gpus) in _REFERENCES.items()
    }


def compare(jobs: Mapping[str, PaperJob]) -> pd.DataFrame:
    """Return the best plan of each job, indexed by the job's name as well.

    Raises
    ------
    ReproError
        A job does not fit its GPUs.
    """
    return pd.concat(
        [best_plans(job, 1) for job in jobs.values()], keys=list(jobs), names=[_SCENARIO]
    )


def plan_breakdown(plans: pd.DataFrame) -> hv.Overlay:
    """Draw iteration time by phase, a bar per plan; the line is the 90 % interval.

    Phases are those of the last pipeline stage (`repro.predict.step.iteration.Phases`); those that
    no plan has are left out.
    """
    phases = 1e3 * plans[list(PHASES)]
    title = "Iteration time by phase, ms (predicted; line: 90 % interval)"
    time, low, high = (1e3 * plans[name] for name in ("iteration_time_s", "low_s", "high_s"))
    interval = [ends[::-1] for ends in (_labels(plans), time, time - low, high - time)]
    return _bars(plans, phases.loc[:, phases.any()], "time", title) * hv.ErrorBars(
        tuple(interval), "plan", ["time", "below", "above"]
    )


def plan_memory(plans: pd.DataFrame) -> hv.Overlay:
    """Draw peak memory by part, a bar per plan; the mark is the memory of a GPU.

    The GPU is the one that needs most.
    """
    parts = plans[[*MEMORY, "framework"]] / 1e9
    title = "Peak memory of a GPU, GB (predicted; mark: the memory that it has)"
    limit = plans.gpu_memory_bytes / 1e9
    return _bars(plans, parts, "memory", title) * _marks(plans, limit, "memory")


def plan_links(plans: pd.DataFrame) -> hv.Overlay:
    """Draw the rate at which the NICs of a node send, as a fraction of their limit.

    Bars are averages over the iteration, marks the burst of the gradient sync (0 where no gradients
    leave a node).
    """
    percent = plans.fabric_limit_gbps / 100
    average = (plans.fabric_gbps / percent).to_frame("average")
    burst = plans.fabric_burst_gbps / percent
    title = "Use of a node's NICs, % (predicted; bar: average, mark: gradient sync)"
    figure = _bars(plans, average, "rate", title) * _marks(plans, burst, "rate")
    return figure.redim.soft_range(rate=(0, 105))


def scenarios(plans: pd.DataFrame) -> hv.Layout:
    """Draw all three figures of plans, one below the other."""
    layout = hv.Layout([draw(plans) for draw in _FIGURES.values()]).cols(1)
    if hv.Store.current_backend == "matplotlib":
        layout.opts(fig_size=250, vspace=0.35, sublabel_format="", backend="matplotlib")
    return layout


def plans_table(plans: pd.DataFrame) -> Styler:
    """Return plans with their predictions in readable units; the cheapest of a job is marked."""
    table = plans.index.to_frame(index=False).rename(columns=lambda name: name.replace("_", " "))
    numbers = {
        "iteration, ms": (1e3 * plans.iteration_time_s, "{:.0f}"),
        "from": (1e3 * plans.low_s, "{:.0f}"),
        "to": (1e3 * plans.high_s, "{:.0f}"),
        "MFU, %": (100 * plans.mfu, "{:.1f}"),
        "memory, GB": (plans.memory_bytes / 1e9, "{:.1f}"),
        "node sends, Gbit/s": (plans.fabric_gbps, "{:.1f}"),
        "in gradient sync, Gbit/s": (plans.fabric_burst_gbps, "{:.1f}"),
        "NICs deliver, Gbit/s": (plans.fabric_limit_gbps, "{:.1f}"),
        "GPU s per sequence": (plans.gpu_s_per_sequence, "{:.3f}"),
    }
    for name, (values, _) in numbers.items():
        table[name] = values.to_numpy()
    if _SCENARIO not in plans.index.names:
        # Scenarios have none: seconds of different GPUs have different prices.
        cost = plans.gpu_s_per_sequence.to_numpy()
        table[""] = np.where(cost == cost.min(), "cheapest", "")
    table.index = pd.RangeIndex(1, len(table) + 1)
    return (
        table.style.format({name: digits for name, (_, digits) in numbers.items()})
        .set_caption("Predicted, not measured; from ... to: 90 % interval of the iteration time.")
        .apply(lambda row: ["font-weight: bold" * (row.iloc[-1] == "cheapest")] * len(row), axis=1)
    )


def verdict(job: PaperJob, plans: pd.DataFrame) -> str:
    """Return the prediction of a job's best plan in words, and how certain it is the best."""
    best = plans.iloc[0]
    computing = sum(best[name] for name in _COMPUTING) / best.iteration_time_s
    alike = int((plans.low_s[1:] <= best.high_s).sum())
    return (
        f"Predicted for {job.title}: {describe(plans.index)[0]} is fastest, with "
        f"{1e3 * best.iteration_time_s:.0f} ms an iteration (90 % interval {1e3 * best.low_s:.0f} "
        f"to {1e3 * best.high_s:.0f} ms), {best.gpu_s_per_sequence:.3f} GPU s a sequence and "
        f"{best.memory_bytes / 1e9:.1f} of {best.gpu_memory_bytes / 1e9:.1f} GB. Computing is "
        f"{100 * computing:.0f} % of its time. Intervals overlap with its own in {alike} of the "
        f"other {len(plans) - 1} plans shown."
    )


def scenario_figures() -> list[Figure]:
    """Return figures of the best plan of each named scenario."""
    best = compare(reference_jobs())
    return [figure(name, "what_if", draw, best) for name, draw in _FIGURES.items()]


def scenario_tables() -> dict[str, Styler]:
    """Return the best plan of each named scenario, and the best plans of each, by title."""
    jobs = reference_jobs()
    return {"The best plan of each": plans_table(compare(jobs))} | {
        job.title: plans_table(best_plans(job, _SHOWN)) for job in jobs.values()
    }


_FIGURES: dict[str, Callable[[pd.DataFrame], hv.Overlay]] = {
    "what_if_time": plan_breakdown,
    "what_if_links": plan_links,
    "what_if_memory": plan_memory,
}


def _labels(plans: pd.DataFrame) -> list[str]:
    """Return names of bars: the plan, with the scenario's name if there are several."""
    described = describe(plans.index)
    if _SCENARIO not in plans.index.names:
        return described
    names = plans.index.get_level_values(_SCENARIO)
    return [f"{name}: {plan}" for name, plan in zip(names, described, strict=True)]


def _bars(plans: pd.DataFrame, values: pd.DataFrame, quantity: str, title: str) -> hv.Bars:
    """Draw stacked horizontal bars, the first row on top.

    The title has the unit: backends disagree on the axis that a label of such bars is for.
    """
    shown = values.set_axis(pd.Index(_labels(plans), name="plan"))[::-1]
    shown.columns = shown.columns.str.replace("_", " ")
    return shown.hvplot.barh(
        stacked=True,
        color=[_COLOURS[name] for name in shown.columns],
        title=title,
        xlabel="",
        ylabel="",
        group_label="part",
        value_label=quantity,
        legend="right",
        width=_WIDTH,
        height=_MARGIN + _ROW_HEIGHT * len(shown),
    )


def _marks(plans: pd.DataFrame, values: pd.Series, quantity: str) -> hv.Scatter:
    """Draw a black mark at a value of each bar, in the order of `_bars`."""
    return limit_marks(_labels(plans)[::-1], values[::-1].to_list(), ("plan", quantity))
