"""GPUs that do not exist yet: what a node, a memory and a network make of a training iteration."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.gpus import Gpu, gpu, read_gpus
from repro.catalog.technology import Technology
from repro.errors import ReproError
from repro.predict.blocks import in_blocks
from repro.predict.explore.fused_plans import DoesNotFit, fitting_plans
from repro.predict.explore.generations import Training
from repro.predict.fused.iteration import Phases, predict_phases
from repro.predict.fused.memory import FRAGMENTATION, memory
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
        An area or a power is not positive, or a name of the training is unknown.
    """
    axes = {"area_mm2": np.asarray(area_mm2, float), "power_w": np.asarray(power_w, float)}
    for name, values in axes.items():
        if not (values > 0).all():
            raise ReproError(f"{name} {values.min():g}: take more than 0")
    nm = np.array([node.nm for node in technology.nodes])
    kinds, networks = technology.memories, np.array(technology.networks_gbps)
    at = np.meshgrid(
        nm, np.arange(len(kinds)), networks, axes["area_mm2"], axes["power_w"], indexing="ij"
    )
    shape = at[0].shape
    node, kind, network, area, power = (axis.ravel() for axis in at)
    peak = peak_flops(technology, node, area, power)
    rates = np.array([1e9 * one.gbytes_per_s * one.places for one in kinds])[kind.astype(int)]
    sizes = np.array([1e9 * one.gb * one.places for one in kinds])[kind.astype(int)]
    reference = gpu(technology.reference.gpu)
    like = reference.model_copy(
        update={"link_gbytes_per_s": link_gbytes_per_s, "domain_gpus": domain_gpus}
    )
    plans = _plans(training, like, sizes)
    waited_s = np.full((len(BOUNDS), len(peak)), np.inf)
    parameters = read_fused().parameters
    for one in range(len(plans.layers)):
        run = replace(
            plans.rows(np.full(len(peak), one)),
            peak_flops=peak,
            half_flops=peak,
            multiprocessors=reference.multiprocessors * peak / reference.peak_flops,
            memory_bytes_per_s=rates,
            nic_bytes_per_s=network * 1e9 / 8,
        )
        phases = in_blocks(run, lambda rows: _waited_s(predict_phases(rows, parameters)))
        table = np.stack(list(phases.values()))
        better = _fits(run, sizes) & (table.sum(axis=0) < waited_s.sum(axis=0))
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


def _waited_s(phases: Phases) -> dict[str, Array]:
    return {
        name: np.sum([getattr(phases, phase) for phase in parts], axis=0)
        for name, parts in BOUNDS.items()
    }


def _fits(run: Run, memory_bytes: Array) -> Array:
    fits: Array = memory(run).total * (1 + FRAGMENTATION / 2) <= memory_bytes
    return fits


def _plans(training: Training, like: Gpu, memory_bytes: Array) -> Run:
    """The fastest plans of a GPU with each size of memory, on the reference's and on six times
    faster silicon."""
    found: list[Run] = []
    parameters = read_fused().parameters
    for gigabytes in np.unique(memory_bytes) / 1e9:
        for faster in (1.0, 6.0):
            device = like.model_copy(
                update={"memory_gb": gigabytes, "peak_flops": like.peak_flops * faster}
            )
            try:
                _, run = fitting_plans(
                    training.model,
                    device,
                    training.gpus,
                    training.global_batch,
                    ("bf16",),
                    training.stack,
                )
            except DoesNotFit:
                # Larger memories follow.
                continue
            time_s = predict_phases(run, parameters).iteration_time_s
            found.append(run.rows(np.argsort(time_s, kind="stable")[:_PLANS_EACH]))
    if not found:
        raise ReproError(
            f"{training.model.label} on {training.gpus} GPUs: no memory of the technologies holds "
            "it; take more GPUs"
        )
    return _distinct(found)


def _distinct(runs: Sequence[Run]) -> Run:
    """All runs one below the other, those that differ only in the device once."""
    joined = {name: np.concatenate([getattr(one, name) for one in runs]) for name in vars(runs[0])}
    split = [
        joined[name] for name in ("tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "recompute")
    ]
    _, first = np.unique(np.stack(split), axis=1, return_index=True)
    return Run(**{name: values[first] for name, values in joined.items()})
