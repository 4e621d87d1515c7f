"""A million GPUs that do not exist: what training waits for on each, the best under budgets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import MEMORY_GB_BYTES, gpu
from repro.catalog.systems.technology import Technology
from repro.errors import ReproError
from repro.predict.explore.hardware.designs import candidate_plans, check_axes, waits_by_plan
from repro.predict.explore.hardware.generations import Training
from repro.predict.workload import Array

# What a design is bound by, and the rate that says so.
RATES = {
    "compute": "peak_tflops",
    "memory": "memory_gbytes_per_s",
    "network": "network_gbps",
}
# Times of a design's rates are those of plans; its memory only decides which plans fit.
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
    """The fastest of a few plans on every combination of rates, in half precision.

    Parameters
    ----------
    peak_tflops, memory_gbytes_per_s, network_gbps, memory_gb
        Values of each axis: rates of one GPU, and the size of its memory.
    link_gbytes_per_s, domain_gpus
        Of all designs, as of NVL72's.

    Returns
    -------
    Dataset
        `iteration_time_s` (memory_gb, peak_tflops, memory_gbytes_per_s, network_gbps), NaN where no
        plan fits; `elasticity` (rate, ...), by how many percent it falls where that rate is one
        percent higher; and `bound`, the index of the largest of these, -1 where no plan fits.

    Raises
    ------
    ReproError
        A value is not one of a GPU, or no plan fits any.
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
    like = gpu(technology.reference.gpu).model_copy(
        update={"link_gbytes_per_s": link_gbytes_per_s, "domain_gpus": domain_gpus}
    )
    sizes = MEMORY_GB_BYTES * axes["memory_gb"]
    rates = {
        "peak_flops": 1e12 * peak,
        "memory_bytes_per_s": 1e9 * speed,
        "nic_bytes_per_s": 1e9 / 8 * network,
    }
    time_s = np.full((len(sizes), len(peak)), np.inf)
    for plan_bytes, waited_s in waits_by_plan(candidate_plans(training, like, sizes), rates):
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
    """The cube with `power_w` and `area_mm2` of each design in a node.

    Power is that of the reference's units by what it takes for an operation in the node, and of
    every bit that moves; area that of the reference's die by the node's density.

    Raises
    ------
    ReproError
        The node is none of the technology's.
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
    """Designs of `with_budget` that no other is both faster and more frugal than.

    Parameters
    ----------
    area_mm2
        Of the dies, at most.

    Returns
    -------
    DataFrame
        The most frugal first: power_w, iteration_time_s, area_mm2, memory_gb, the values of
        `RATES`, and bound, one of its keys.
    """
    everything = designs[["power_w", "iteration_time_s", "area_mm2", "bound"]].broadcast_like(
        designs.iteration_time_s
    )
    flat = {name: everything[name].values.ravel() for name in everything.data_vars}
    allowed = np.flatnonzero((flat["area_mm2"] <= area_mm2) & ~np.isnan(flat["iteration_time_s"]))
    order = allowed[np.lexsort((flat["iteration_time_s"][allowed], flat["power_w"][allowed]))]
    times = flat["iteration_time_s"][order]
    fastest_so_far = np.minimum.accumulate(np.concatenate([[np.inf], times[:-1]]))
    chosen = order[times < fastest_so_far]
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
    """By how many percent a time falls along an axis where the rate is one percent higher."""
    if len(rate) == 1:
        return np.zeros_like(time_s)
    slope: Array = np.gradient(np.log(time_s), np.log(rate), axis=axis)
    return -slope


def _watts(bytes_per_s: Any, picojoules_per_bit: float) -> Any:
    return 8e-12 * bytes_per_s * picojoules_per_bit
