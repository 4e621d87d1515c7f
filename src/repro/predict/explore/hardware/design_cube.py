"""Grid of hypothetical GPUs: iteration time, its bound, power, area and Pareto front."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import MEMORY_GB_BYTES, gpu
from repro.catalog.systems.technology import Technology
from repro.errors import ReproError
from repro.predict.explore.hardware.designs import candidate_plans, check_axes, waits_by_plan
from repro.predict.explore.jobs.fused_plans import Training
from repro.predict.explore.jobs.search import pareto
from repro.predict.workload import Array

# Possible bounds of a design, each with the rate that relieves it.
RATES = {
    "compute": "peak_tflops",
    "memory": "memory_gbytes_per_s",
    "network": "network_gbps",
}
# The memory size decides only which plans fit; the rates decide their times.
_DIMS = ("memory_gb", *RATES.values())
_UNITS = dict(zip(_DIMS, ("1e9 B", "1e12 FLOP/s", "1e9 B/s", "Gbit/s"), strict=True))


def design_cube(
    training: Training,
    technology: Technology,
    *,
    peak_tflops: Sequence[float],
    memory_gbytes_per_s: Sequence[float],
    network_gbps: Sequence[float],
    memory_gb: Sequence[float],
    link_gbytes_per_s: float = 900.0,
    domain_gpus: int = 72,
) -> xr.Dataset:
    """Predict the fastest of a few plans on every combination of rates, in half precision.

    Parameters
    ----------
    peak_tflops, memory_gbytes_per_s, network_gbps, memory_gb
        Values of each axis: rates of one GPU, and its memory size.
    link_gbytes_per_s, domain_gpus
        Link rate and domain size of all designs. Default: NVL72's.

    Returns
    -------
    Dataset
        `iteration_time_s` (memory_gb, peak_tflops, memory_gbytes_per_s, network_gbps), NaN if no
        plan fits; `elasticity` (rate, ...), the percentage by which it falls per percent of that
        rate; and `bound`, the index of the largest elasticity, -1 if no plan fits.

    Raises
    ------
    ReproError
        A value is out of range, or no plan fits any design.
    """
    axes = check_axes(
        {
            "memory_gb": memory_gb,
            "peak_tflops": peak_tflops,
            "memory_gbytes_per_s": memory_gbytes_per_s,
            "network_gbps": network_gbps,
        }
    )
    grid = np.meshgrid(*(axes[name] for name in RATES.values()), indexing="ij")
    peak, speed, network = (axis.ravel() for axis in grid)
    sizes = MEMORY_GB_BYTES * axes["memory_gb"]
    rates = {
        "peak_flops": 1e12 * peak,
        "memory_bytes_per_s": 1e9 * speed,
        "nic_bytes_per_s": 1e9 / 8 * network,
    }
    time_s = np.full((len(sizes), len(peak)), np.inf)
    plans = candidate_plans(training, technology, sizes, link_gbytes_per_s, domain_gpus)
    for plan_bytes, waited_s in waits_by_plan(plans, rates):
        held = np.where(plan_bytes <= sizes, 1.0, np.inf)
        time_s = np.minimum(time_s, held[:, None] * waited_s.sum(axis=0))
    form = [len(axes[name]) for name in _DIMS]
    time_s = np.where(np.isinf(time_s), np.nan, time_s).reshape(form)
    elasticity = np.stack([_falls(time_s, axes[name], at) for at, name in enumerate(_DIMS)][1:])
    fits = ~np.isnan(time_s)
    bound = np.where(fits, np.nan_to_num(elasticity).argmax(axis=0), -1).astype(np.int8)
    return xr.Dataset(
        {
            "iteration_time_s": (_DIMS, time_s, {"units": "s"}),
            "elasticity": (("rate", *_DIMS), elasticity),
            "bound": (_DIMS, bound, {"meanings": list(RATES)}),
        },
        coords={"rate": list(RATES)}
        | {name: (name, axes[name], {"units": _UNITS[name]}) for name in _DIMS},
        attrs={
            "model": training.model.label,
            "gpus": training.gpus,
            "link_gbytes_per_s": link_gbytes_per_s,
            "source": "predicted",
        },
    )


def with_budget(cube: xr.Dataset, technology: Technology, nm: float) -> xr.Dataset:
    """Add `power_w` and `area_mm2` of each design in a process node.

    Power is the energy of operations and of moved bits per second: an operation takes the
    reference's energy, scaled to the node. Area is the reference's, scaled by the node's density.

    Raises
    ------
    ReproError
        The technology has no such node.
    """
    known = [node.nm for node in technology.nodes]
    if nm not in known:
        raise ReproError(f"node {nm:g} nm: choose from {', '.join(f'{one:g}' for one in known)}")
    reference = technology.reference
    moving = {name: one.picojoules_per_bit for name, one in technology.moving.items()}
    home = gpu(reference.gpu)
    link_w = _watts(1e9 * cube.link_gbytes_per_s, moving["link"])
    of_home = _watts(1e9 * home.memory_gbytes_per_s, moving["memory"])
    of_home = of_home + _watts(1e9 * home.link_gbytes_per_s, moving["link"])
    per_flops = (reference.power_w - of_home) / home.peak_flops * technology.energy(nm)
    power = (
        1e12 * cube.peak_tflops * per_flops
        + _watts(1e9 * cube.memory_gbytes_per_s, moving["memory"])
        + _watts(1e9 / 8 * cube.network_gbps, moving["network"])
        + link_w
    )
    area = 1e12 * cube.peak_tflops / home.peak_flops * reference.area_mm2 / technology.density(nm)
    return cube.assign(power_w=power, area_mm2=area)


def pareto_front(designs: xr.Dataset, area_mm2: float = np.inf) -> pd.DataFrame:
    """Select the designs of `with_budget` that are Pareto-optimal in time and power.

    Parameters
    ----------
    area_mm2
        Largest area of the dies.

    Returns
    -------
    DataFrame
        Lowest power first: power_w, iteration_time_s, area_mm2, memory_gb, the values of `RATES`,
        and bound, one of its keys.
    """
    everything = designs[["power_w", "iteration_time_s", "area_mm2", "bound"]].broadcast_like(
        designs.iteration_time_s
    )
    flat = {name: everything[name].values.ravel() for name in everything.data_vars}
    allowed = np.flatnonzero((flat["area_mm2"] <= area_mm2) & ~np.isnan(flat["iteration_time_s"]))
    costs = np.stack([flat["power_w"][allowed], flat["iteration_time_s"][allowed]], axis=1)
    # Of designs with equal costs, the one with the least memory comes first.
    optimal = np.flatnonzero(pareto(costs))
    _, first = np.unique(costs[optimal], axis=0, return_index=True)
    chosen = allowed[optimal[first]]
    at = np.unravel_index(chosen, designs.iteration_time_s.shape)
    dims = designs.iteration_time_s.dims
    return pd.DataFrame(
        {
            **{name: flat[name][chosen] for name in ("power_w", "iteration_time_s", "area_mm2")},
            **{str(dim): designs[dim].values[where] for dim, where in zip(dims, at, strict=True)},
            "bound": np.array(list(RATES))[flat["bound"][chosen]],
        }
    )


def _falls(time_s: Array, rate: Array, axis: int) -> Array:
    """Return the percentage by which a time falls along an axis per percent of the rate."""
    if len(rate) == 1:
        return np.zeros_like(time_s)
    slope: Array = np.gradient(np.log(time_s), np.log(rate), axis=axis)
    return -slope


def _watts(bytes_per_s: Any, picojoules_per_bit: float) -> Any:
    return 8e-12 * bytes_per_s * picojoules_per_bit
