"""Quantities of the papers, computed from datasets of the schema, with intervals.

Every function keeps the dimensions (source, model, protocol, gpus) and that of a sweep. Samples are
averaged over ranks and iterations first, so that fractions are ratios of times, not means of
ratios. `docs/reference/quantities.md` defines each quantity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import xarray as xr

from repro.catalog.phases import COMMUNICATION
from repro.observe.precision import CONFIDENCE, NORMAL_QUANTILE, student_quantile

_RESAMPLES = 1000

# Function of a dataset that returns a scalar, or one per resample along the dimension `resample`.
Statistic = Callable[[xr.Dataset], xr.DataArray]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval at `CONFIDENCE`."""

    value: float
    low: float
    high: float


def iteration_time_s(results: xr.Dataset) -> xr.DataArray:
    """Return the mean iteration time at full scale."""
    return results["iteration_time_s"].mean(["iteration", "rank"]) / results["time_scale"]


def phase_time_s(results: xr.Dataset, *phases: str) -> xr.DataArray:
    """Return the mean time per iteration in some phases together, at full scale."""
    chosen = results["phase_time_s"].sel(phase=list(phases))
    return (
        chosen.mean(["iteration", "rank"]).sum("phase", min_count=len(phases))
        / results["time_scale"]
    )


def communication_fraction(results: xr.Dataset) -> xr.DataArray:
    """Return the fraction of the iteration in the papers' timers: stragglers and the wire.

    Examples
    --------
    >>> from repro.results.reference import read_reference
    >>> fraction = communication_fraction(read_reference("weak_scaling")).sel(gpus=8)
    >>> bool((fraction.sel(protocol="tcp") > fraction.sel(protocol="rdma")).all())
    True
    """
    return phase_time_s(results, *COMMUNICATION) / iteration_time_s(results)


def forward_receive_s(results: xr.Dataset) -> xr.DataArray:
    """Return figure 5's forward receive: Megatron's timer on the last stage, with the fill."""
    timers = results["p2p_time_s"].mean("iteration")
    return _last_rank(timers.sel(timer="forward-recv", drop=True)) / results["time_scale"]


def embedding_sync_s(results: xr.Dataset) -> xr.DataArray:
    """Return figure 5's embedding sync: the last stage's wait, the drain, and the all-reduce."""
    return last_stage_s(results, "straggler wait", "embedding sync")


def last_stage_s(results: xr.Dataset, *phases: str) -> xr.DataArray:
    """Return the mean time per iteration of the last rank in some phases, at full scale."""
    chosen = results["phase_time_s"].sel(phase=list(phases)).mean("iteration")
    return _last_rank(chosen.sum("phase", min_count=len(phases))) / results["time_scale"]


def timer_fraction(results: xr.Dataset) -> xr.DataArray:
    """Return the communication of figures 5 and 6(b): both of these over the iteration time."""
    both = forward_receive_s(results) + embedding_sync_s(results)
    return both / iteration_time_s(results)


def pipeline_split_s(results: xr.Dataset) -> xr.DataArray:
    """Divide the iteration time of pipelines into parts, with waiting and the wire separate.

    Returns
    -------
    DataArray
        Mean over ranks at full scale, with the dimension `part`: forward and backward compute;
        messages (one in flight); waiting for neighbours (fill and imbalance, in point-to-point
        calls with nothing in flight); drain (waiting for all stages to finish); embedding sync;
        gradient sync; optimizer; parameter all-gather; other.
    """
    phases = results["phase_time_s"]
    calls = results["p2p_time_s"].sum("timer", min_count=1)
    wire = results["p2p_wire_s"].sum("timer", min_count=1)
    parts = {
        "forward compute": phases.sel(phase="forward compute", drop=True),
        "backward compute": phases.sel(phase="backward compute", drop=True),
        "messages": wire,
        "waiting for neighbours": calls - wire,
        "drain": phases.sel(phase="straggler wait", drop=True),
        **{
            name: phases.sel(phase=name, drop=True)
            for name in (
                "embedding sync",
                "gradient sync",
                "optimizer",
                "parameter all-gather",
                "other",
            )
        },
    }
    stacked = xr.concat(list(parts.values()), dim="part", coords="minimal", join="outer")
    mean = stacked.mean(["iteration", "rank"]) / results["time_scale"]
    return mean.assign_coords(part=list(parts))


def wire_share(results: xr.Dataset) -> xr.DataArray:
    """Return the fraction of a pipeline's iteration in messages, both syncs and the all-gather."""
    moving = ["messages", "embedding sync", "gradient sync", "parameter all-gather"]
    parts = pipeline_split_s(results).sel(part=moving)
    return parts.sum("part", min_count=len(moving)) / iteration_time_s(results)


def _last_rank(values: xr.DataArray) -> xr.DataArray:
    return values.sel(rank=values["gpus"] - 1).drop_vars("rank")


def strong_efficiency(time: xr.DataArray, first: int, last: int) -> xr.DataArray:
    """Return T(first) first / (T(last) last): 1 if the time falls in proportion to the GPUs."""
    return time.sel(gpus=first) * first / (time.sel(gpus=last) * last)


def weak_efficiency(time: xr.DataArray, first: int, last: int) -> xr.DataArray:
    """Return T(first) / T(last): 1 if added GPUs cost no time."""
    return time.sel(gpus=first) / time.sel(gpus=last)


def speed_up(time: xr.DataArray, slow: str, fast: str) -> xr.DataArray:
    """Return T(slow protocol) / T(fast protocol)."""
    return time.sel(protocol=slow) / time.sel(protocol=fast)


def utilisation_gbps(results: xr.Dataset, direction: str = "rx") -> xr.DataArray:
    """Return the mean rate of a node's NIC over the iterations in Gbit/s, full-scale equivalent."""
    return results[f"{direction}_iteration_full_scale_gbps"].mean(["iteration", "node"])


@dataclass(frozen=True)
class Sample:
    """Results with their bootstrap resamples, which all quantities of them share."""

    results: xr.Dataset
    resamples: xr.Dataset


def draw_sample(results: xr.Dataset) -> Sample:
    """Draw resamples from results."""
    return Sample(results, resample(results))


def resample(results: xr.Dataset) -> xr.Dataset:
    """Return bootstrap resamples of the iterations (Efron): means of draws with replacement.

    All configurations with the same number of iterations share the draws, because those of
    protocols were recorded interleaved. The generator is seeded: the same data give the same
    intervals. Dimension `iteration` shrinks to one, the mean of the draw, and `resample` is new.
    So every quantity above can be computed for all resamples at once.

    Draws from n values vary less than their mean does: by sqrt(1 - 1/n), and by the quantile of a
    normal distribution over Student's. Deviations from the mean are larger by both, so that the
    interval of a mean is that of `half_width`.
    """
    recorded = results["iteration_time_s"].notnull().any("rank").sum("iteration")
    most = results.sizes["iteration"]
    weights = xr.zeros_like(recorded, dtype=float)
    for count in np.unique(recorded.values[recorded.values > 0]).tolist():
        draws = np.random.default_rng(0).multinomial(count, [1 / count] * count, size=_RESAMPLES)
        deviations = (draws - 1) / count * _small_sample_factor(count)
        padded = np.pad(1 / count + deviations, ((0, 0), (0, most - count)))
        drawn = xr.DataArray(padded, dims=("resample", "iteration"))
        weights = weights + drawn * (recorded == count)
    needed = results.drop_dims(["sample", "span", "message", "call"], errors="ignore").drop_vars(
        "iteration"
    )
    return needed.map(
        lambda values: (
            _drawn(values, weights).expand_dims("iteration")
            if "iteration" in values.dims
            else values
        )
    )


def _small_sample_factor(count: int) -> float:
    """Return how much larger the interval of a mean is than that of draws; 1 for one value."""
    if count == 1:
        return 1.0
    return student_quantile(count) / NORMAL_QUANTILE / sqrt(1 - 1 / count)


def _drawn(values: xr.DataArray, weights: xr.DataArray) -> xr.DataArray:
    """Return weighted means over iterations; NaN where no iteration has a value."""
    mean: xr.DataArray = xr.dot(values.fillna(0), weights, dim="iteration")
    return mean.where(values.notnull().any("iteration"))


def estimate(sample: Sample, statistic: Statistic) -> Estimate:
    """Estimate a statistic of the results and its bootstrap interval."""
    resampled = statistic(sample.resamples)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    return Estimate(float(statistic(sample.results)), float(low), float(high))


def interval(results: xr.Dataset, statistic: Statistic) -> tuple[xr.DataArray, xr.DataArray]:
    """Return both ends of the bootstrap interval of each value of a statistic."""
    # Resamples of times are enough for figures.
    times = results[["iteration_time_s", "phase_time_s", "time_scale"]]
    tail = (1 - CONFIDENCE) / 2
    low, high = statistic(resample(times)).quantile([tail, 1 - tail], dim="resample")
    return low.drop_vars("quantile"), high.drop_vars("quantile")


def support(sample: Sample, statement: Statistic) -> float:
    """Return the fraction of bootstrap resamples in which a statement (true or false) holds."""
    return float(statement(sample.resamples).mean())
