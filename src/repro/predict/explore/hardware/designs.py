"""Hypothetical GPUs: training iterations by process node, memory and network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import MEMORY_GB_BYTES, gpu, read_gpus
from repro.catalog.systems.technology import Technology
from repro.errors import ReproError
from repro.predict.blocks import in_blocks
from repro.predict.explore.jobs.fused_plans import Training, fitting_plans
from repro.predict.explore.jobs.search import DoesNotFit
from repro.predict.fused.iteration import predict_phases
from repro.predict.fused.memory import fullest_bytes
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import Run
from repro.predict.workload import Array

# Phases of an iteration by what would shorten them.
BOUNDS: dict[str, tuple[str, ...]] = {
    "compute": ("products", "attention", "logits", "recompute"),
    "memory": ("elements", "optimizer"),
    "network": (
        *("tensor_parallel", "context_parallel", "expert_parallel", "replicas"),
        "messages",
    ),
    "schedule": ("bubble", "host", "stragglers"),
}
# Allowed ranges. A wafer is 70,000 mm2; other limits are far from today's GPUs.
_ALLOWED = {
    "area_mm2": (1.0, 1e5),
    "power_w": (1.0, 1e5),
    "peak_tflops": (1.0, 1e6),
    "memory_gbytes_per_s": (10.0, 1e6),
    "memory_gb": (1.0, 1e5),
    "network_gbps": (1.0, 1e5),
}
# Plans that every design tries, per memory size and speed of silicon.
_BEST = slice(3)


def peak_flops(technology: Technology, nm: Array, area_mm2: Array, power_w: Array) -> Array:
    """Return the half-precision peak in FLOP/s of the reference's design, scaled.

    `nm`, `area_mm2` and `power_w` are the new process node, die area and power.

    Units fill the area at the reference's clock, as far as power allows: the peak grows by
    density x area or by power / energy, whichever is less.
    """
    reference = technology.reference
    density = np.vectorize(technology.density)(nm)
    energy = np.vectorize(technology.energy)(nm)
    by_area = density * area_mm2 / reference.area_mm2
    by_power = power_w / reference.power_w / energy
    found: Array = gpu(reference.gpu).peak_flops * np.minimum(by_area, by_power)
    return found


def designs_gained(technology: Technology) -> pd.DataFrame:
    """Compare the peaks of existing GPUs with the reference's, scaled to their node.

    A ratio above 1 is a gain by design: larger matrix units, lower precision in other units.

    Returns
    -------
    DataFrame
        By GPU: nm, by_node_tflops and data_sheet_tflops (half-precision peaks), and gained, their
        ratio.
    """
    rows = {}
    for name, die in technology.known.items():
        entry = read_gpus()[name]
        numbers = (np.array(value) for value in (die.nm, die.area_mm2, die.power_w))
        by_node = float(peak_flops(technology, *numbers))
        rows[entry.label] = {
            "nm": die.nm,
            "by_node_tflops": by_node / 1e12,
            "data_sheet_tflops": entry.peak_flops / 1e12,
            "gained": entry.peak_flops / by_node,
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def explore_designs(
    training: Training,
    technology: Technology,
    *,
    area_mm2: Sequence[float],
    power_w: Sequence[float],
    link_gbytes_per_s: float = 900.0,
    domain_gpus: int = 72,
) -> xr.Dataset:
    """Predict the fastest of a few plans on every design, in half precision.

    Parameters
    ----------
    area_mm2, power_w
        Total area and power of a GPU's dies.
    link_gbytes_per_s, domain_gpus
        Link rate and domain size of all designs. Default: NVL72's.

    Returns
    -------
    Dataset
        `waited_s` (bound, nm, memory, network_gbps, area_mm2, power_w), parts that add up to the
        iteration time, NaN if no plan fits; and `peak_flops` (nm, area_mm2, power_w).

    Raises
    ------
    ReproError
        A value is out of range, a name is unknown, or no plan fits any design.
    """
    axes = check_axes({"area_mm2": area_mm2, "power_w": power_w})
    nm = np.array([node.nm for node in technology.nodes])
    kinds, networks = technology.memories, np.array(technology.networks_gbps)
    at = np.meshgrid(
        nm, np.arange(len(kinds)), networks, axes["area_mm2"], axes["power_w"], indexing="ij"
    )
    shape = at[0].shape
    node, kind, network, area, power = (axis.ravel() for axis in at)
    peak = peak_flops(technology, node, area, power)
    stacks = [(1e9 * one.gbytes_per_s, MEMORY_GB_BYTES * one.gb) for one in kinds]
    packages = np.transpose(stacks) * [one.places for one in kinds]
    speeds, sizes = packages[:, kind.astype(int)]
    rates = {
        "peak_flops": peak,
        "memory_bytes_per_s": speeds,
        "nic_bytes_per_s": network * 1e9 / 8,
    }
    waited_s = np.full((len(BOUNDS), len(peak)), np.inf)
    plans = candidate_plans(training, technology, sizes, link_gbytes_per_s, domain_gpus)
    for plan_bytes, table in waits_by_plan(plans, rates):
        better = (plan_bytes <= sizes) & (table.sum(axis=0) < waited_s.sum(axis=0))
        waited_s = np.where(better, table, waited_s)
    waited_s = np.where(np.isinf(waited_s), np.nan, waited_s)
    dims = ("nm", "memory", "network_gbps", "area_mm2", "power_w")
    return xr.Dataset(
        {
            "waited_s": (("bound", *dims), waited_s.reshape(-1, *shape), {"units": "s"}),
            "peak_flops": (
                ("nm", "area_mm2", "power_w"),
                peak.reshape(shape)[:, 0, 0],
                {"units": "FLOP/s"},
            ),
        },
        coords={
            "bound": list(BOUNDS),
            "nm": nm,
            "memory": [one.name for one in kinds],
            "network_gbps": networks,
            **axes,
        },
        attrs={"model": training.model.label, "gpus": training.gpus, "source": "predicted"},
    )


def check_axes(axes: Mapping[str, Sequence[float]]) -> dict[str, Array]:
    """Convert values of each axis to arrays.

    Raises
    ------
    ReproError
        A value is out of range, or an axis is empty.
    """
    found = {name: np.asarray(values, dtype=float) for name, values in axes.items()}
    for name, values in found.items():
        low, high = _ALLOWED[name]
        wrong = values[~((values >= low) & (values <= high))]
        if wrong.size or not values.size:
            given = f"{wrong[0]:g}" if wrong.size else "nothing"
            raise ReproError(f"{name} {given}: take {low:g} to {high:g}")
    return found


def waits_by_plan(plans: Run, rates: Mapping[str, Array]) -> Iterator[tuple[float, Array]]:
    """Yield each plan's memory in bytes and the parts of its iteration in seconds (bound, design).

    `rates` are fields of `Run` with one value per design. Multiprocessors grow with the peak.
    """
    parameters = read_fused().parameters
    count = len(rates["peak_flops"])
    taken = fullest_bytes(plans)
    per_flops = plans.multiprocessors / plans.peak_flops

    def waited_s(rows: Run) -> dict[str, Array]:
        phases = predict_phases(rows, parameters)
        return {
            name: np.sum([getattr(phases, phase) for phase in parts], axis=0)
            for name, parts in BOUNDS.items()
        }

    for one in range(len(plans.layers)):
        run = replace(
            plans.rows(np.full(count, one)),
            half_flops=rates["peak_flops"],
            multiprocessors=per_flops[one] * rates["peak_flops"],
            **rates,
        )
        yield float(taken[one]), np.stack(list(in_blocks(run, waited_s).values()))


def candidate_plans(
    training: Training,
    technology: Technology,
    memory_bytes: Array,
    link_gbytes_per_s: float,
    domain_gpus: int,
) -> Run:
    """Search the fastest plans for each memory size, on the reference's and on faster silicon.

    Raises
    ------
    DoesNotFit
        No plan fits in the largest memory.
    """
    like, sizes = gpu(technology.reference.gpu), np.unique(memory_bytes)
    found: list[Run] = []
    for faster in (1.0, 6.0):
        device = like.model_copy(
            update={
                "link_gbytes_per_s": link_gbytes_per_s,
                "domain_gpus": domain_gpus,
                "memory_gb": sizes[-1] / MEMORY_GB_BYTES,
                "peak_flops": like.peak_flops * faster,
                "multiprocessors": round(like.multiprocessors * faster),
            }
        )
        try:
            fitting = fitting_plans(replace(training, precisions=("bf16",)), device)
        except DoesNotFit:
            raise DoesNotFit(
                f"{training.model.label} on {training.gpus} GPUs: no memory of the designs holds "
                "it; take more GPUs"
            ) from None
        ranked = fitting.fastest()
        found += [ranked.run.rows(ranked.memory_bytes <= size).rows(_BEST) for size in sizes]
    return _distinct(found)


def _distinct(runs: Sequence[Run]) -> Run:
    """Concatenate runs, and keep one of those that differ only in the device."""
    joined = {name: np.concatenate([getattr(one, name) for one in runs]) for name in vars(runs[0])}
    split = [
        joined[name] for name in ("tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
    ]
    _, first = np.unique(np.stack(split), axis=1, return_index=True)
    return Run(**{name: values[first] for name, values in joined.items()})
