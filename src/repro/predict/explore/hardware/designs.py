"""GPUs that do not exist yet: what a node, a memory and a network make of a training iteration."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.systems.gpus import MEMORY_GB_BYTES, Gpu, gpu, read_gpus
from repro.catalog.systems.technology import Technology
from repro.errors import ReproError
from repro.predict.blocks import in_blocks
from repro.predict.explore.hardware.generations import Training
from repro.predict.explore.jobs.fused_plans import DoesNotFit, fitting_plans
from repro.predict.fused.iteration import in_blocks_s, predict_phases
from repro.predict.fused.memory import fullest_bytes
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import Run
from repro.predict.workload import Array

# What an iteration waits for, by what would make it faster.
BOUNDS: dict[str, tuple[str, ...]] = {
    "compute": ("products", "attention", "logits", "recompute"),
    "memory": ("elements", "optimizer"),
    "network": (
        *("tensor_parallel", "context_parallel", "expert_parallel", "replicas"),
        "messages",
    ),
    "schedule": ("bubble", "host", "stragglers"),
}
# What a GPU could have: a wafer is 70,000 mm2; other ends are far from anything of today.
_ALLOWED = {
    "area_mm2": (1.0, 1e5),
    "power_w": (1.0, 1e5),
    "peak_tflops": (1.0, 1e6),
    "memory_gbytes_per_s": (10.0, 1e6),
    "memory_gb": (1.0, 1e5),
    "network_gbps": (1.0, 1e5),
}
# Plans that are tried for every design, of each corner: size of memory, slow and fast silicon.
_PLANS_EACH = 3


def peak_flops(technology: Technology, nm: Array, area_mm2: Array, power_w: Array) -> Array:
    """Half-precision peak in FLOP/s of the reference's design in another node, area and power.

    Units fill the area, at the reference's clock, as far as power allows: density x area, or power
    / energy, whichever is less.
    """
    reference = technology.reference
    density = np.vectorize(technology.density)(nm)
    energy = np.vectorize(technology.energy)(nm)
    by_area = density * area_mm2 / reference.area_mm2
    by_power = power_w / reference.power_w / energy
    found: Array = gpu(reference.gpu).peak_flops * np.minimum(by_area, by_power)
    return found


def designs_gained(technology: Technology) -> pd.DataFrame:
    """What GPUs that exist reach of the peak that their node, area and power make of the reference.

    What is above 1 is the designers': larger matrix units, lower precision in other units.

    Returns
    -------
    DataFrame
        By GPU: nm, by_node and data_sheet (half-precision peaks in TFLOP/s) and gained.
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
    """The fastest of a few plans on every design, in half precision.

    Parameters
    ----------
    area_mm2, power_w
        Of a GPU's dies, all together.
    link_gbytes_per_s, domain_gpus
        Of all designs, as of NVL72's.

    Returns
    -------
    Dataset
        `waited_s` (bound, nm, memory, network_gbps, area_mm2, power_w), what the iteration waits
        for, of which the sum is its time, NaN where no plan fits; and `peak_flops`
        (nm, area_mm2, power_w).

    Raises
    ------
    ReproError
        An area or a power is not one of a GPU, or a name of the training is unknown.
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
    reference = gpu(technology.reference.gpu)
    like = reference.model_copy(
        update={"link_gbytes_per_s": link_gbytes_per_s, "domain_gpus": domain_gpus}
    )
    rates = {
        "peak_flops": peak,
        "memory_bytes_per_s": speeds,
        "nic_bytes_per_s": network * 1e9 / 8,
    }
    waited_s = np.full((len(BOUNDS), len(peak)), np.inf)
    for plan_bytes, table in waits_by_plan(candidate_plans(training, like, sizes), rates):
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
    """Values of a design's numbers as arrays.

    Raises
    ------
    ReproError
        A value is not one that a GPU could have, or there is none.
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
    """What each plan takes of memory in bytes, and what designs wait for with it (bound, design).

    `rates` are fields of `Run`, a value a design; multiprocessors go with the peak.
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


def candidate_plans(training: Training, like: Gpu, memory_bytes: Array) -> Run:
    """The fastest plans of a GPU with each size of memory, on the reference's and on six times
    faster silicon."""
    sizes = np.unique(memory_bytes)
    found: list[Run] = []
    for faster in (1.0, 6.0):
        device = like.model_copy(
            update={
                "memory_gb": sizes[-1] / MEMORY_GB_BYTES,
                "peak_flops": like.peak_flops * faster,
                "multiprocessors": round(like.multiprocessors * faster),
            }
        )
        job = (training.gpus, training.global_batch, ("bf16",), training.stack)
        try:
            table, run = fitting_plans(training.model, device, *job)
        except DoesNotFit:
            raise DoesNotFit(
                f"{training.model.label} on {training.gpus} GPUs: no memory of the designs holds "
                "it; take more GPUs"
            ) from None
        time_s = in_blocks_s(run, read_fused().parameters)
        order = np.argsort(time_s, kind="stable")
        taken = table.memory_bytes.to_numpy()[order]
        found += [run.rows(order[taken <= size][:_PLANS_EACH]) for size in sizes]
    return _distinct(found)


def _distinct(runs: Sequence[Run]) -> Run:
    """All runs one below the other, those that differ only in the device once."""
    joined = {name: np.concatenate([getattr(one, name) for one in runs]) for name in vars(runs[0])}
    split = [
        joined[name] for name in ("tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
    ]
    _, first = np.unique(np.stack(split), axis=1, return_index=True)
    return Run(**{name: values[first] for name, values in joined.items()})
