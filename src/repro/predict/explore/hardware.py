"""Training speed by GPU: existing GPUs, mixtures of two, and designs that do not exist."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import factorial

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import MEMORY_GB_BYTES, Gpu, gpu, read_gpus
from repro.catalog.systems.technology import Technology
from repro.errors import DoesNotFit, ReproError
from repro.predict.explore.jobs.fused_plans import Training, fitting_plans, phases_s
from repro.predict.explore.jobs.search import interval, pareto
from repro.predict.fused.memory import fullest_bytes
from repro.predict.fused.parameters import half_width, read_fused
from repro.predict.fused.run import Run
from repro.predict.workload import Array

# Fields of a GPU by part. The part `precision` is the units below half precision, relative to
# those for half precision.
PARTS: Mapping[str, tuple[str, ...]] = {
    "computing": ("peak_flops", "multiprocessors", "generation"),
    "precision": (),
    "memory": ("memory_gbytes_per_s", "memory_gb"),
    "links": ("link_gbytes_per_s", "domain_gpus"),
    "network": ("nic_gbps",),
}
# Phases of an iteration by what would shorten them.
BOUNDS: Mapping[str, tuple[str, ...]] = {
    "compute": ("products", "attention", "logits", "recompute"),
    "memory": ("elements", "optimizer"),
    "network": ("tensor_parallel", "context_parallel", "expert_parallel", "replicas", "messages"),
    "schedule": ("bubble", "host", "stragglers"),
}
# Possible bounds of a design, each with the rate that relieves it.
_RATES = {
    "compute": "peak_tflops",
    "memory": "memory_gbytes_per_s",
    "network": "network_gbps",
}
# Axes of `design_cube`. The memory size decides only which plans fit.
_AXES = ("memory_gb", *_RATES.values())
# Link rate and domain size of all designs: NVL72's.
_LINKS = {"link_gbytes_per_s": 900.0, "domain_gpus": 72}
# Plans that every design tries, per memory size and speed of silicon.
_BEST = 3


def fastest(training: Training, device: Gpu) -> pd.Series:
    """Search the fastest plan on a GPU, which need not be in the catalogue.

    Returns
    -------
    Series
        `SPLIT`, iteration_time_s and half_width, half of the 90 % interval of the time's logarithm.

    Raises
    ------
    ReproError
        A name is unknown, the GPUs cannot be split, or no plan fits.
    """
    has = tuple(name for name in training.precisions if name in device.precisions)
    found = fitting_plans(replace(training, precisions=has or training.precisions), device)
    best = found.fastest(1)
    table = best.table().drop(columns=["zero", "memory_bytes"])
    return table.assign(half_width=half_width(best.run, read_fused())).iloc[0]


def generations(training: Training, names: Sequence[str]) -> pd.DataFrame:
    """Search the fastest iteration on each GPU of the catalogue that can hold the model.

    Returns
    -------
    DataFrame
        One row per GPU: `SPLIT`, iteration_time_s with low_s and high_s (90 %), and times_as_fast
        relative to the first row.
    """
    rows = {}
    for name in names:
        try:
            found = fastest(training, gpu(name))
        except DoesNotFit:
            continue
        ends = interval(found.iteration_time_s, found.half_width)
        rows[gpu(name).label] = {**found.drop("half_width"), **ends}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.assign(times_as_fast=table.iteration_time_s.iloc[0] / table.iteration_time_s)


def more_gpus(
    training: Training, old: Gpu, new: Gpu, times: Sequence[int] = (1, 2, 4, 8)
) -> pd.DataFrame:
    """Return the speed-up by a newer GPU, with the same number of GPUs and with more.

    Returns
    -------
    DataFrame
        One row per entry of `times`, the factor of GPUs: gpus, times_as_fast with low and high
        (90 %, residuals of both GPUs in quadrature).
    """
    before = fastest(training, old)
    rows = {}
    for more in times:
        gpus = training.gpus * more
        after = fastest(replace(training, gpus=gpus), new)
        ratio = before.iteration_time_s / after.iteration_time_s
        width = np.exp(np.hypot(before.half_width, after.half_width))
        rows[more] = (gpus, ratio, ratio / width, ratio * width)
    columns = ["gpus", "times_as_fast", "low", "high"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def hybrid(old: Gpu, new: Gpu, parts: frozenset[str]) -> Gpu:
    """Replace some `PARTS` of the older GPU by those of the newer one."""
    fields = chain.from_iterable(PARTS[part] for part in parts)
    made = old.model_copy(update={field: getattr(new, field) for field in fields})
    units = new if "precision" in parts else old
    ratio = made.peak_flops / units.peak_flops
    return made.model_copy(
        update={
            "fp8_flops": units.fp8_flops and units.fp8_flops * ratio,
            "fp4_flops": units.fp4_flops and units.fp4_flops * ratio,
        }
    )


def speed_up_by_part(training: Training, old: Gpu, new: Gpu) -> pd.DataFrame:
    """Divide the speed-up from one GPU to another among parts.

    The gain of a part depends on the parts replaced before. `factor` is its geometric mean over all
    orders of replacement (Shapley, 1953), so the factors' product is the whole speed-up.

    Returns
    -------
    DataFrame
        One row per part, in the order of `PARTS`: factor; least and most over all orders; first
        (only this part replaced) and last (all other parts replaced before).
    """
    names = list(PARTS)
    sets = [frozenset(s) for k in range(len(names) + 1) for s in combinations(names, k)]
    logarithm = {
        parts: -np.log(fastest(training, hybrid(old, new, parts)).iteration_time_s)
        for parts in sets
    }
    rows = {}
    for name in names:
        without = [parts for parts in sets if name not in parts]
        gains = np.array([logarithm[parts | {name}] - logarithm[parts] for parts in without])
        weights = [factorial(len(s)) * factorial(len(names) - 1 - len(s)) for s in without]
        # Sets are sorted by size: the first is empty, the last has all other parts.
        rows[name] = np.exp(
            [np.average(gains, weights=weights), gains.min(), gains.max(), gains[0], gains[-1]]
        )
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["factor", "least", "most", "first", "last"]
    )


def scaled_peak_tflops(technology: Technology, nm: float, area_mm2: float, power_w: float) -> float:
    """Scale the reference GPU's half-precision peak to a process node, die area and power.

    Units fill the area at the reference's clock, as far as power allows: the peak grows by
    density x area or by power / energy, whichever is less.
    """
    reference = technology.reference
    by_area = technology.density(nm) * area_mm2 / reference.area_mm2
    by_power = power_w / reference.power_w / technology.energy(nm)
    return gpu(reference.gpu).peak_flops / 1e12 * min(by_area, by_power)


def gains_by_design(technology: Technology) -> pd.DataFrame:
    """Compare the peaks of existing GPUs with the reference's, scaled to their node.

    Returns
    -------
    DataFrame
        By GPU: nm, by_node_tflops and data_sheet_tflops (half-precision peaks), and gained, their
        ratio: above 1 if the design gained too, such as by larger matrix units.
    """
    rows = {}
    for name, die in technology.known.items():
        by_node = scaled_peak_tflops(technology, die.nm, die.area_mm2, die.power_w)
        peak = read_gpus()[name].peak_flops / 1e12
        rows[read_gpus()[name].label] = (die.nm, by_node, peak, peak / by_node)
    columns = ["nm", "by_node_tflops", "data_sheet_tflops", "gained"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def designs_by_node(
    training: Training,
    technology: Technology,
    *,
    area_mm2: float,
    power_w: float,
    network_gbps: float,
) -> xr.DataArray:
    """Predict iterations on the reference GPU's design in other nodes, with other memories.

    Returns
    -------
    DataArray
        Seconds of the parts of an iteration (`BOUNDS`) by bound, memory and nm; NaN if no plan
        fits. Dies have `area_mm2` and `power_w` in all.

    Raises
    ------
    ReproError
        A value is not positive, or no plan fits any design.
    """
    nm = [node.nm for node in technology.nodes]
    peaks = [scaled_peak_tflops(technology, one, area_mm2, power_w) for one in nm]
    memories = technology.memories
    kinds = {"memory": [one.name for one in memories]}
    axes = {
        "memory_gb": xr.DataArray([one.gb * one.places for one in memories], kinds),
        "peak_tflops": xr.DataArray(peaks, {"nm": nm}),
        "memory_gbytes_per_s": xr.DataArray(
            [one.gbytes_per_s * one.places for one in memories], kinds
        ),
        "network_gbps": xr.DataArray(network_gbps),
    }
    return _fastest_designs(training, technology, axes)


def design_cube(
    training: Training, technology: Technology, axes: Mapping[str, Sequence[float]]
) -> xr.Dataset:
    """Predict iterations on every combination of rates and memory sizes.

    `axes` are values of peak_tflops, memory_gbytes_per_s, network_gbps and memory_gb of one GPU.

    Returns
    -------
    Dataset
        `iteration_time_s` by axis, NaN if no plan fits; and `bound`, the index in its attribute
        `meanings` of the rate by which the time falls most, -1 if no plan fits.

    Raises
    ------
    ReproError
        A value is not positive, or no plan fits any design.
    """
    arrays = {name: xr.DataArray(list(axes[name]), {name: list(axes[name])}) for name in _AXES}
    time_s = _fastest_designs(training, technology, arrays).sum("bound", skipna=False)
    falls = xr.concat([_falls(time_s, rate) for rate in _RATES.values()], "rate")
    bound = falls.fillna(0).argmax("rate").where(time_s.notnull(), -1).astype(np.int8)
    bound.attrs["meanings"] = list(_RATES)
    return xr.Dataset({"iteration_time_s": time_s.assign_attrs(units="s"), "bound": bound})


def with_budget(cube: xr.Dataset, technology: Technology, nm: float) -> xr.Dataset:
    """Add `power_w` and `area_mm2` of each design in a process node.

    Power is the energy of operations and of moved bits per second: an operation takes the
    reference's energy, scaled to the node. Area is the reference's, scaled by the node's density.
    """
    reference, home = technology.reference, gpu(technology.reference.gpu)
    memory, link, network = (
        8e-3 * technology.moving[name].picojoules_per_bit for name in ("memory", "link", "network")
    )
    home_w = memory * home.memory_gbytes_per_s + link * home.link_gbytes_per_s
    times = 1e12 * cube.peak_tflops / home.peak_flops
    power = times * (reference.power_w - home_w) * technology.energy(nm)
    power = power + memory * cube.memory_gbytes_per_s + network / 8 * cube.network_gbps
    return cube.assign(
        power_w=power + link * _LINKS["link_gbytes_per_s"],
        area_mm2=times * reference.area_mm2 / technology.density(nm),
    )


def pareto_front(designs: xr.Dataset, area_mm2: float) -> pd.DataFrame:
    """Select the designs of `with_budget` that are Pareto-optimal in time and power.

    Dies have at most `area_mm2`.

    Returns
    -------
    DataFrame
        Lowest power first: power_w, iteration_time_s, area_mm2, the axes of the cube, and bound
        (compute, memory or network).
    """
    names = ["power_w", "iteration_time_s", "area_mm2", "bound"]
    every = designs[names].to_dataframe(dim_order=list(_AXES))
    allowed = every[(every.area_mm2 <= area_mm2) & every.iteration_time_s.notna()]
    optimal = allowed[pareto(allowed[names[:2]].to_numpy())]
    # Of designs with equal costs, the one with the least memory comes first.
    front = optimal.drop_duplicates(names[:2]).sort_values("power_w").reset_index()
    return front[[*names[:3], *_AXES]].assign(bound=np.array(list(_RATES))[front.bound])


def _fastest_designs(
    training: Training, technology: Technology, axes: Mapping[str, xr.DataArray]
) -> xr.DataArray:
    """Predict the parts of the fastest of a few plans on every design, in half precision.

    Dimensions of `axes`, by the names of `_AXES`, broadcast.
    """
    for name, axis in axes.items():
        if not (axis.size and bool((axis > 0).all())):
            given = ", ".join(f"{value:g}" for value in axis.values.ravel())
            raise ReproError(f"{name} {given}: take more than 0")
    sizes = MEMORY_GB_BYTES * axes["memory_gb"]
    rates = xr.broadcast(*(axes[name] for name in _RATES.values()))
    dims, coords = ("bound", *rates[0].dims), {"bound": list(BOUNDS), **rates[0].coords}
    plans = _candidate_plans(training, technology, np.unique(sizes))
    best = xr.DataArray(np.full(len(BOUNDS), np.inf), {"bound": list(BOUNDS)})
    for row, plan_bytes in enumerate(fullest_bytes(plans)):
        parts = _parts_s(plans.rows(np.array([row])), *(rate.values.ravel() for rate in rates))
        parts_s = xr.DataArray(parts.reshape(-1, *rates[0].shape), coords, dims)
        better = (plan_bytes <= sizes) & (parts_s.sum("bound") < best.sum("bound"))
        best = parts_s.where(better, best)
    return best.where(np.isfinite(best)).transpose("bound", *sizes.dims, ...)


def _parts_s(plan: Run, tflops: Array, gbytes_per_s: Array, gbps: Array) -> Array:
    """Return the parts of one plan's iteration in seconds (bound, design).

    Multiprocessors grow with the peak.
    """
    run = replace(
        plan.rows(np.zeros(len(tflops), dtype=int)),
        peak_flops=1e12 * tflops,
        half_flops=1e12 * tflops,
        multiprocessors=plan.multiprocessors / plan.peak_flops * 1e12 * tflops,
        memory_bytes_per_s=1e9 * gbytes_per_s,
        nic_bytes_per_s=1e9 / 8 * gbps,
    )
    phases = phases_s(run)
    return np.stack([np.sum([phases[one] for one in parts], axis=0) for parts in BOUNDS.values()])


def _candidate_plans(training: Training, technology: Technology, sizes_bytes: Array) -> Run:
    """Search the fastest plans for each memory size, on the reference's and on faster silicon.

    Raises
    ------
    DoesNotFit
        No plan fits in the largest memory.
    """
    like = gpu(technology.reference.gpu)
    largest = {"label": "the largest design", "memory_gb": sizes_bytes[-1] / MEMORY_GB_BYTES}
    chosen: set[int] = set()
    for faster in (1, 6):
        units = {name: faster * getattr(like, name) for name in ("peak_flops", "multiprocessors")}
        device = like.model_copy(update={**_LINKS, **largest, **units})
        # The same plans fit however fast the silicon is.
        fitting = fitting_plans(replace(training, precisions=("bf16",)), device)
        order = np.argsort(fitting.iteration_time_s, kind="stable")
        for size in sizes_bytes:
            chosen.update(order[fitting.memory_bytes[order] <= size][:_BEST])
    return fitting.run.rows(np.array(sorted(chosen)))


def _falls(time_s: xr.DataArray, rate: str) -> xr.DataArray:
    """Return the percentage by which a time falls along an axis per percent of the rate."""
    if time_s.sizes[rate] == 1:
        return xr.zeros_like(time_s)
    slope = np.gradient(np.log(time_s), np.log(time_s[rate]), axis=time_s.get_axis_num(rate))
    return time_s.copy(data=-slope)
