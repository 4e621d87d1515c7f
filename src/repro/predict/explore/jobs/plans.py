"""Every way to split a training job over its GPUs, ranked by predicted iteration time."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.models.papers import Model, read_models
from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster, read_clusters
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.errors import ReproError
from repro.observe.environment import provenance
from repro.paths import HOME
from repro.predict.calibration.interval import LEVEL, half_width
from repro.predict.explore.jobs.sweep import predict
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Calibration, calibration
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.predict.step.quantities import MEMORY, quantities
from repro.predict.workload import (
    RECOMPUTE,
    Plan,
    Recompute,
    Workload,
    divisors,
    valid,
    workload,
)
from repro.results.store import write_dataset

# The one choice of `protocol` where a cluster has no protocols to choose from.
FABRIC = "fabric"
# The fields of `Plan` in which the plans of a job differ.
SPLIT = (
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "virtual_stages",
    "micro_batch_size",
    "recompute",
)


@dataclass(frozen=True)
class Job:
    """What is trained on what; `choose_job` checks it.

    Attributes
    ----------
    name : str
        The names it was chosen by, joined, for files.
    protocol : Protocol or None
        None: the fabric's own rate.
    gpus, global_batch_size : int
        GPUs of the job; sequences per iteration.
    recompute : tuple of str
        The modes that its plans may have.
    """

    name: str
    model: Model
    cluster: Cluster
    protocol: Protocol | None
    gpus: int
    global_batch_size: int
    recompute: tuple[Recompute, ...]

    @property
    def title(self) -> str:
        """The job in words."""
        transport = f" over {self.protocol.label}" if self.protocol else ""
        return (
            f"{self.model.label}, global batch {self.global_batch_size}, on {self.gpus} GPUs"
            f"{transport} ({self.cluster.label})"
        )

    @cached_property
    def calibration(self) -> Calibration:
        """What the performance model takes for the cluster."""
        return calibration(self.cluster.calibration)

    @cached_property
    def machine(self) -> Machine:
        """The cluster as the performance model sees it."""
        return machine(self.cluster, self.calibration.parameters, self.protocol)

    def workload(self, plans: pd.Index) -> Workload:
        """The job split in each of the ways that `enumerate_plans` returns."""
        split = {name: plans.get_level_values(name).to_numpy() for name in SPLIT}
        plan = Plan(global_batch_size=self.global_batch_size, **split)
        return workload(self.model.family, self.model.full, plan).flat()[0]


def transports(cluster: str) -> list[str]:
    """What `protocol` may be on a cluster: the cluster's own, or `fabric`, the rate of its NICs."""
    return list(read_clusters()[cluster].protocols) or [FABRIC]


def choose_job(
    model: str,
    cluster: str,
    protocol: str,
    gpus: int,
    global_batch_size: int,
    recompute: str = "any",
) -> Job:
    """Check a job.

    Parameters
    ----------
    model, cluster : str
        Names of `params/models.yaml` and `params/clusters.yaml`.
    protocol : str
        One of `transports(cluster)`.
    gpus, global_batch_size : int
        GPUs of the job; sequences per iteration.
    recompute : str
        `none`, `selective`, `full`, or `any` of them.

    Raises
    ------
    ReproError
        A name is unknown, or a number is not allowed; the message says what is.

    Examples
    --------
    >>> choose_job("gpt2-large", "dgx-a100", "fabric", gpus=16, global_batch_size=64).gpus
    16
    """
    trained = choose("model", model, read_models())
    where = choose("cluster", cluster, read_clusters())
    known = read_protocols()
    here = {name: known.get(name) for name in transports(cluster)}
    transport = choose(f"protocol on {cluster}", protocol, here)
    if not (isinstance(gpus, int) and 1 <= gpus <= where.topology.gpus):
        raise ReproError(
            f"gpus {gpus!r}: {cluster} has {where.topology.gpus} GPUs; "
            f"take a whole number from 1 to {where.topology.gpus}"
        )
    if not (isinstance(global_batch_size, int) and global_batch_size >= 1):
        raise ReproError(
            f"global_batch_size {global_batch_size!r}: take a whole number of sequences, 1 or more"
        )
    modes: dict[str, tuple[Recompute, ...]] = {mode: (mode,) for mode in RECOMPUTE}
    return Job(
        name=f"{model}-{cluster}-{protocol}-{gpus}-{global_batch_size}-{recompute}",
        model=trained,
        cluster=where,
        protocol=transport,
        gpus=gpus,
        global_batch_size=global_batch_size,
        recompute=choose("recompute", recompute, modes | {"any": RECOMPUTE}),
    )


def enumerate_plans(job: Job) -> pd.MultiIndex:
    """Every plan of a job that can run, whether or not it fits into memory.

    Tensor-parallel groups fill nodes without a rest, because their collectives are in the way of
    every layer. What is no field of `SPLIT` is as `Plan` has it by default.

    Returns
    -------
    MultiIndex
        An entry per plan, with the levels `SPLIT`.

    Raises
    ------
    ReproError
        The GPUs cannot be split.
    """
    # Twice the layers, for t5's two stacks; `valid` drops what does not divide the others'.
    stages = divisors(2 * job.model.full.layers)
    t, p, v, b, mode = np.meshgrid(
        divisors(job.cluster.topology.gpus_per_node),
        stages,
        stages,
        divisors(job.global_batch_size),
        np.array(job.recompute),
        indexing="ij",
    )
    whole = job.gpus % (t * p) == 0
    split = (t, job.gpus // (t * p), p, v, b, mode)
    plans = pd.MultiIndex.from_arrays([field[whole] for field in split], names=SPLIT)
    plans = plans[valid(job.workload(plans))]
    if plans.empty:
        raise ReproError(
            f"gpus {job.gpus}: no split suits the layers and heads of {job.model.label} and "
            f"global_batch_size {job.global_batch_size}; make the latter a multiple of {job.gpus}"
        )
    return plans


def best_plans(job: Job, count: int) -> pd.DataFrame:
    """The plans of a job that fit into memory and have the shortest predicted iterations.

    All use the same GPUs, so the fastest is also the cheapest.

    Parameters
    ----------
    count : int
        How many, at most.

    Returns
    -------
    DataFrame
        A row per plan, fastest first, indexed by `SPLIT`. Columns: what
        `repro.predict.step.quantities.quantities` predicts, in its units; `low_s` and `high_s`, the
        90 % interval of `iteration_time_s`; `framework` and `memory_bytes`, what the framework and
        what all parts take of the `gpu_memory_bytes` of one GPU; `fabric_limit_gbps`, the rate that
        the NICs of one node deliver; `gpu_s_per_sequence`, what training costs.

    Raises
    ------
    ReproError
        The GPUs cannot be split, or no plan fits into a GPU's memory.

    Examples
    --------
    >>> job = choose_job("gpt2-large", "dgx-a100", "fabric", gpus=16, global_batch_size=64)
    >>> len(best_plans(job, count=3))
    3
    """
    plans = enumerate_plans(job)
    predicted = quantities(job.workload(plans), job.machine, job.calibration.parameters)
    device = job.cluster.device
    table = pd.DataFrame(predicted, index=plans).assign(
        framework=FRAMEWORK_BYTES,
        gpu_memory_bytes=device.memory_bytes,
        fabric_limit_gbps=8e-9 * job.machine.levels[-1].bytes_per_s,
    )
    table["memory_bytes"] = table[[*MEMORY, "framework"]].sum(axis=1)
    table["gpu_s_per_sequence"] = table.iteration_time_s * job.gpus / job.global_batch_size
    fitting = table[table.memory_bytes <= table.gpu_memory_bytes]
    if fitting.empty:
        raise ReproError(
            f"gpus {job.gpus}: {job.model.label} takes {table.memory_bytes.min() / 1e9:.1f} GB or "
            f"more of each, and {device.label} has {device.memory_bytes / 1e9:.1f} GB; "
            f"take more GPUs{'' if job.recompute == RECOMPUTE else ', recompute any'} or a cluster "
            "whose GPUs have more"
        )
    best = fitting.sort_values(["iteration_time_s", "memory_bytes"]).head(count)
    rows = job.workload(best.index)
    width = np.exp(half_width(rows, job.cluster, job.calibration, job.protocol))
    return best.assign(low_s=best.iteration_time_s / width, high_s=best.iteration_time_s * width)


def save_plans(job: Job, best: pd.DataFrame, output: str = "") -> Path:
    """Write a job's best plans as a dataset, as `explore.jobs.sweep.predict` has them.

    Parameters
    ----------
    best : DataFrame
        As `best_plans` returns them.
    output : str
        The netCDF file, relative to the project's root; by default one below `results/adhoc/` that
        is named by the job.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ReproError
        The folder cannot be written or the disk is full.
    """
    split = {
        name: xr.DataArray(best.index.get_level_values(name).to_numpy(), dims="plan")
        for name in SPLIT
    }
    plan = Plan(global_batch_size=job.global_batch_size, **split)
    parameters = job.calibration.parameters
    predicted = predict(job.model.family, job.model.full, plan, job.machine, parameters)
    seconds = {"units": "s", "long_name": f"end of the {LEVEL:.0%} interval of iteration_time_s"}
    dataset = (
        predicted.assign({name: ("plan", best[name], seconds) for name in ("low_s", "high_s")})
        .assign_coords({"plan": describe(best.index), **split})
        .expand_dims(source=["predicted"])
        .assign_attrs(
            title=f"{job.title}: the best plans, predicted",
            provenance=provenance(
                {
                    "model": job.model.model_dump(),
                    "cluster": job.cluster.model_dump(),
                    "protocol": job.protocol.model_dump() if job.protocol else FABRIC,
                    "gpus": job.gpus,
                    "global_batch_size": job.global_batch_size,
                    "calibration": job.calibration.model_dump(exclude={"covariance"}),
                }
            ),
        )
    )
    path = HOME / (output or f"results/adhoc/what_if-{job.name}.nc")
    write_dataset(dataset, path)
    return path


def describe(plans: pd.Index) -> list[str]:
    """Plans in short, by their levels `SPLIT`: the sizes of the tensor, data and pipeline groups,
    x virtual stages, micro batch, recomputation."""
    split = zip(*(plans.get_level_values(name) for name in SPLIT), strict=True)
    return [
        f"t{t} d{d} p{p}{f'x{v}' if v > 1 else ''} b{b}{f' {mode}' if mode != 'none' else ''}"
        for t, d, p, v, b, mode in split
    ]
