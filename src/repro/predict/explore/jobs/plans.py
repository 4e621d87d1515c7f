"""Parallel plans of a paper model's training job, ranked by predicted iteration time."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import xarray as xr

from repro.catalog.models.papers import Model, read_models
from repro.catalog.reading import choose
from repro.catalog.systems.clusters import Cluster, read_clusters
from repro.catalog.systems.protocols import Protocol, read_protocols
from repro.errors import ReproError
from repro.observe.environment import provenance
from repro.paths import HOME
from repro.predict.calibration.interval import half_width
from repro.predict.explore.jobs.search import enumerate_plans, fits_memory, interval
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Calibration, calibration
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.predict.step.quantities import MEMORY, PHASES, quantities
from repro.predict.workload import RECOMPUTE, Plan, Workload, divisors, workload
from repro.results.store import write_dataset

# The only `protocol` of a cluster without protocols of its own.
FABRIC = "fabric"
# Fields of `Plan` in which the plans of a job differ.
SPLIT = (
    *("tensor_parallel", "data_parallel", "pipeline_parallel", "virtual_stages"),
    *("micro_batch_size", "recompute"),
)
# Units by the end of a quantity's name.
_UNITS = {"_bytes": "B", "_gbps": "Gbit/s", "_per_gpu": "1/s", "_per_sequence": "s", "_s": "s"}


@dataclass(frozen=True)
class PaperJob:
    """Training job on a cluster, checked by `choose_job`.

    `name` joins the arguments of `choose_job`, for file names. Without a `protocol`, links have the
    rate of the fabric.
    """

    name: str
    model: Model
    cluster: Cluster
    protocol: Protocol | None
    gpus: int
    global_batch_size: int

    @property
    def title(self) -> str:
        """The job as a title."""
        transport = f" over {self.protocol.label}" if self.protocol else ""
        return (
            f"{self.model.label}, global batch {self.global_batch_size}, on {self.gpus} GPUs"
            f"{transport} ({self.cluster.label})"
        )

    @cached_property
    def calibration(self) -> Calibration:
        """The cluster's calibrated parameters."""
        return calibration(self.cluster.calibration)

    @cached_property
    def machine(self) -> Machine:
        """The cluster as the performance model sees it."""
        return machine(self.cluster, self.calibration.parameters, self.protocol)

    def workload(self, plans: pd.Index) -> Workload:
        """Combine the job with the plans that `job_plans` returns."""
        split = {name: plans.get_level_values(name).to_numpy() for name in SPLIT}
        plan = Plan(global_batch_size=self.global_batch_size, **split)
        return workload(self.model.family, self.model.full, plan).flat()[0]


def transports(cluster: str) -> list[str]:
    """List the protocols of a cluster: its own, or `fabric`, the rate of its NICs."""
    return list(read_clusters()[cluster].protocols) or [FABRIC]


def choose_job(
    model: str, cluster: str, protocol: str, gpus: int, global_batch_size: int
) -> PaperJob:
    """Check a job: names in `params/`, a protocol of `transports`, and sequences per iteration.

    Raises
    ------
    ReproError
        A name is unknown, or a number is out of range; the message lists the choices.

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
    name = f"{model}-{cluster}-{protocol}-{gpus}-{global_batch_size}"
    return PaperJob(name, trained, where, transport, gpus, global_batch_size)


def job_plans(job: PaperJob) -> pd.MultiIndex:
    """Enumerate every plan of a job that can run, whether or not it fits in memory.

    Tensor-parallel groups divide a node's GPUs, because every layer waits for their collectives.
    Fields of `Plan` that are not in `SPLIT`, the levels of the index, have their defaults.

    Raises
    ------
    ReproError
        The GPUs cannot be split.
    """
    shape = job.model.full
    # T5 has an encoder and a decoder of so many layers.
    layers = shape.layers * (2 if job.model.family == "t5" else 1)
    plans = enumerate_plans(
        job.gpus,
        job.model.label,
        widths=(shape.attention_heads, shape.ffn_hidden_size),
        layers=(layers,),
        global_batch=job.global_batch_size,
        tp=divisors(job.cluster.topology.gpus_per_node),
        pp=divisors(layers),
        vpp=divisors(layers),
        micro_batch=divisors(job.global_batch_size),
        recompute=RECOMPUTE,
    )
    columns = ["tp", "dp", "pp", "vpp", "micro_batch", "recompute"]
    return pd.MultiIndex.from_frame(plans[columns], names=SPLIT)


def best_plans(job: PaperJob, count: int) -> pd.DataFrame:
    """Return up to `count` plans that fit in memory and have the shortest predicted iterations.

    All plans use the same GPUs, so the fastest is also the cheapest.

    Returns
    -------
    DataFrame
        One row per plan, fastest first, indexed by `SPLIT`. Columns: the quantities of
        `repro.predict.step.quantities.quantities`; `low_s` and `high_s`, the 90 % interval of
        `iteration_time_s`; `framework` and `memory_bytes`, memory of the framework and of all
        parts; `gpu_memory_bytes` of one GPU; `fabric_limit_gbps`, the rate of one node's NICs; and
        `gpu_s_per_sequence`, the cost of training.

    Raises
    ------
    ReproError
        The GPUs cannot be split, or no plan fits in a GPU's memory.

    Examples
    --------
    >>> job = choose_job("gpt2-large", "dgx-a100", "fabric", gpus=16, global_batch_size=64)
    >>> len(best_plans(job, count=3))
    3
    """
    plans = job_plans(job)
    predicted = quantities(job.workload(plans), job.machine, job.calibration.parameters)
    device = job.cluster.device
    table = pd.DataFrame(predicted, index=plans).assign(
        framework=FRAMEWORK_BYTES,
        gpu_memory_bytes=device.memory_bytes,
        fabric_limit_gbps=8e-9 * job.machine.levels[-1].bytes_per_s,
    )
    table["memory_bytes"] = table[[*MEMORY, "framework"]].sum(axis=1)
    table["gpu_s_per_sequence"] = table.iteration_time_s * job.gpus / job.global_batch_size
    taken, asked = table.memory_bytes.to_numpy(), f"gpus {job.gpus}: {job.model.label}"
    advice = "take more GPUs or a cluster whose GPUs have more"
    fitting = table[fits_memory(taken, device, asked, lambda: advice)]
    order = ["iteration_time_s", "memory_bytes"]
    best = fitting.sort_values(order, kind="stable").head(count)
    width = half_width(job.workload(best.index), job.cluster, job.calibration, job.protocol)
    return best.assign(**interval(best.iteration_time_s, width))


def save_plans(job: PaperJob, best: pd.DataFrame, output: str = "") -> None:
    """Write a job's best plans as a dataset with the dimensions plan, phase and part of memory.

    Parameters
    ----------
    best
        Result of `best_plans`.
    output
        netCDF file, relative to the project's root. Default: a file in `results/adhoc/` with the
        job's name.

    Raises
    ------
    ReproError
        The folder cannot be written or the disk is full.
    """
    phases, parts = best[list(PHASES)], best[[*MEMORY, "framework"]]
    others = best.drop(columns=[*phases, *parts, "memory_bytes"])
    dataset = xr.Dataset(
        {
            "phase_time_s": (("plan", "phase"), phases),
            "memory_bytes": (("plan", "part"), parts),
            **{name: ("plan", others[name]) for name in others},
        },
        {
            "plan": describe(best.index),
            "phase": phases.columns.str.replace("_", " "),
            "part": parts.columns.str.replace("_", " "),
            **{name: ("plan", best.index.get_level_values(name)) for name in SPLIT},
        },
    )
    for name, variable in dataset.data_vars.items():
        units = (unit for ending, unit in _UNITS.items() if str(name).endswith(ending))
        variable.attrs["units"] = next(units, "1")
    known = {
        "model": job.model.model_dump(),
        "cluster": job.cluster.model_dump(),
        "protocol": job.protocol.model_dump() if job.protocol else FABRIC,
        "gpus": job.gpus,
        "global_batch_size": job.global_batch_size,
        "calibration": job.calibration.model_dump(exclude={"covariance"}),
    }
    dataset = dataset.expand_dims(source=["predicted"]).assign_attrs(
        title=f"{job.title}: the best plans, predicted", provenance=provenance(known)
    )
    write_dataset(dataset, HOME / (output or f"results/adhoc/what_if-{job.name}.nc"))


def describe(plans: pd.Index) -> list[str]:
    """Abbreviate plans: tensor, data and pipeline sizes, x virtual stages, micro batch, mode."""
    split = zip(*(plans.get_level_values(name) for name in SPLIT), strict=True)
    return [
        f"t{t} d{d} p{p}{f'x{v}' if v > 1 else ''} b{b}{f' {mode}' if mode != 'none' else ''}"
        for t, d, p, v, b, mode in split
    ]
