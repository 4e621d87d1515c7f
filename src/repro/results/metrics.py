"""The quantities of the papers, computed from datasets of the schema, with intervals.

Every function takes and returns arrays with the dimensions (source, model, protocol, gpus) left as
they are. Samples are averaged over ranks and iterations first, so that shares are ratios of times,
not means of ratios. `docs/quantities.md` defines each quantity.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

COMMUNICATION = ("straggler wait", "gradient sync")
CONFIDENCE = 0.95
_RESAMPLES = 400


@dataclass(frozen=True)
class Estimate:
    """A value with its interval at `CONFIDENCE`."""

    value: float
    low: float
    high: float


def iteration_time_s(results: xr.Dataset) -> xr.DataArray:
    """Mean iteration time at full scale."""
    return results["iteration_time_s"].mean(["iteration", "rank"]) / results["time_scale"]


def phase_time_s(results: xr.Dataset, *phases: str) -> xr.DataArray:
    """Mean time per iteration in some phases together, at full scale."""
    chosen = results["phase_time_s"].sel(phase=list(phases))
    return (
        chosen.mean(["iteration", "rank"]).sum("phase", min_count=len(phases))
        / results["time_scale"]
    )


def communication_fraction(results: xr.Dataset) -> xr.DataArray:
    """Share of the iteration that the papers' timer shows: waiting for stragglers and the wire."""
    return phase_time_s(results, *COMMUNICATION) / iteration_time_s(results)


def wire_fraction(results: xr.Dataset) -> xr.DataArray:
    """Share of the iteration in which gradients are on the wire."""
    return phase_time_s(results, "gradient sync") / iteration_time_s(results)


def strong_efficiency(time: xr.DataArray, first: int, last: int) -> xr.DataArray:
    """T(first) first / (T(last) last): 1 when each added GPU shortens the time in proportion."""
    return time.sel(gpus=first) * first / (time.sel(gpus=last) * last)


def weak_efficiency(time: xr.DataArray, first: int, last: int) -> xr.DataArray:
    """T(first) / T(last): 1 when added GPUs cost no time."""
    return time.sel(gpus=first) / time.sel(gpus=last)


def speed_up(time: xr.DataArray, slow: str, fast: str) -> xr.DataArray:
    """T(slow protocol) / T(fast protocol)."""
    return time.sel(protocol=slow) / time.sel(protocol=fast)


def utilisation_gbps(results: xr.Dataset, direction: str = "rx") -> xr.DataArray:
    """Mean rate at a node's NIC over the iterations, full-scale equivalent, in Gbit/s."""
    return results[f"{direction}_iteration_full_scale_gbps"].mean(["iteration", "node"])


def estimate(results: xr.Dataset, statistic: Callable[[xr.Dataset], float]) -> Estimate:
    """A statistic of the results and its bootstrap interval over iterations.

    Iterations are drawn with replacement (Efron's percentile bootstrap), for every configuration
    together; the generator is seeded, so that the same data give the same interval.
    """
    resampled = _resample(results, statistic)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.nanpercentile(resampled, [tail, 100 - tail])
    return Estimate(float(statistic(results)), float(low), float(high))


def support(results: xr.Dataset, statement: Callable[[xr.Dataset], bool]) -> float:
    """The share of bootstrap resamples in which a statement holds."""
    return float(np.mean(_resample(results, lambda sample: float(statement(sample)))))


def _resample(results: xr.Dataset, statistic: Callable[[xr.Dataset], float]) -> np.ndarray:
    generator = np.random.default_rng(0)
    count = results.sizes["iteration"]
    # Series that no quantity uses are large; copying them for every resample would take minutes.
    needed = results.drop_dims(["sample", "span"])
    return np.array(
        [
            statistic(needed.isel(iteration=generator.integers(0, count, count)))
            for _ in range(_RESAMPLES)
        ]
    )
