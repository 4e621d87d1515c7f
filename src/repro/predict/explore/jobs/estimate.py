"""Estimates of training jobs: does it fit, what should it reach, and what would change it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from repro.catalog.jobs import ResolvedJob, check
from repro.catalog.models.layers import layer_kinds, products
from repro.catalog.systems.protocols import read_protocols
from repro.errors import ReproError
from repro.predict.fused.iteration import FusedPhases, predict_phases, sent_through_nics_bytes
from repro.predict.fused.memory import FRAGMENTATION, FRAMEWORK_BYTES, memory
from repro.predict.fused.parameters import half_width, measured_generations, read_fused
from repro.predict.fused.run import PRECISIONS, Run, decoder_runs, peak_flops, training_flops
from repro.predict.memory import Memory
from repro.predict.parameters import TRANSFER
from repro.predict.workload import RECOMPUTE

PHASES = tuple(one.name for one in fields(FusedPhases))
PARTS = tuple(one.name for one in fields(Memory))
# Phases of `FusedPhases` by what a reader asks for.
COMPUTING = ("products", "attention", "elements", "logits", "recompute")
COMMUNICATION = {
    "data": "replicas",
    "tensor": "tensor_parallel",
    "pipeline": "messages",
    "context": "context_parallel",
    "expert": "expert_parallel",
}
# Verdicts on memory.
FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"
_HIDDEN = ("hidden_dp", "hidden_gradients", "hidden_tp", "hidden_pp")


def rows(jobs: Sequence[ResolvedJob]) -> Run:
    """Return one row of a run per job."""
    found = [_row(job) for job in jobs]
    return Run(
        **{
            one.name: np.concatenate([getattr(row, one.name) for row in found])
            for one in fields(Run)
        }
    )


def _row(job: ResolvedJob) -> Run:
    overlaps = {} if job.overlap == "all" else dict.fromkeys(_HIDDEN, 0.0)
    return decoder_runs(
        job.shape,
        job.device,
        job.stack,
        imbalance=job.expert_imbalance,
        **{name: [getattr(job, name)] for name in ("tp", "pp", "cp", "ep", "etp", "dp", "vpp")},
        zero_bubble=0,
        sharded=float(job.zero == 3),
        trained=_trained_share(job),
        gradient_bytes=job.gradient_bytes,
        micro_batch=job.micro_batch,
        micro_batches=job.micro_batches,
        recompute=RECOMPUTE.index(job.recompute),
        precision=PRECISIONS.index(job.precision),
        **overlaps,
    )


def _trained_share(job: ResolvedJob) -> float:
    """Return the share of parameters that have gradients: all, or adapters of all products.

    An adapter of rank r beside weights of (n, k) has r (n + k) parameters (Hu et al., LoRA, 2021).
    """
    if not job.lora_rank:
        return 1.0
    adapters = sum(
        count * job.lora_rank * (one.inputs + one.outputs) * (one.experts or 1)
        for count, layer in layer_kinds(job.shape)
        for one in products(layer)
        if one.parameters
    )
    return min(float(adapters) / job.shape.count(job.shape.experts), 0.99)


@dataclass(frozen=True)
class JobEstimate:
    """Predicted iteration and memory of one job.

    Attributes
    ----------
    phases_s
        Seconds by `PHASES`.
    half_width
        Half of the 90 % interval of ln(iteration time).
    calibrated
        Whether the GPU is catalogued and the calibration has runs of its generation.
    stages
        Bytes on a GPU of each pipeline stage: `PARTS`, framework, low, expected and high.
    flops
        Floating-point operations of an iteration, nothing recomputed, causal attention.
    nic_bytes
        Bytes that a GPU sends through its NIC per iteration.
    """

    job: ResolvedJob
    phases_s: dict[str, float]
    half_width: float
    calibrated: bool
    stages: pd.DataFrame
    flops: float
    nic_bytes: float

    @cached_property
    def iteration_time_s(self) -> float:
        """Seconds of an iteration."""
        return sum(self.phases_s.values())

    @property
    def interval_s(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the iteration time."""
        factor = float(np.exp(self.half_width))
        return self.iteration_time_s / factor, self.iteration_time_s * factor

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.job.tokens / self.iteration_time_s / self.job.gpus

    @property
    def peak_flops(self) -> float:
        """Dense peak of a GPU in the job's precision, in FLOP/s."""
        return peak_flops(self.job.device, self.job.precision)

    @property
    def mfu(self) -> float:
        """Model FLOPs over time and peak."""
        return self.flops / (self.iteration_time_s * self.job.gpus * self.peak_flops)

    @property
    def nic_gbps(self) -> float:
        """Rate of a node's NICs over the iteration, in Gbit/s."""
        return 8e-9 * self.nic_bytes * self.job.gpus_per_node / self.iteration_time_s

    @property
    def memory_verdict(self) -> str:
        """Whether the fullest stage fits: `FITS`, `TIGHT` or `DOES_NOT_FIT`."""
        there = self.job.device.memory_bytes
        if self.stages.high.max() <= there:
            return FITS
        return TIGHT if self.stages.low.max() <= there else DOES_NOT_FIT


def estimate(jobs: Sequence[ResolvedJob]) -> list[JobEstimate]:
    """Predict iterations and memory of jobs.

    Examples
    --------
    >>> from repro.catalog.jobs import Job, resolve
    >>> job = resolve(Job(model="llama3.1-8b", gpu="h100-sxm-80gb", gpus=8, tp=2))
    >>> 0.2 < estimate([job])[0].mfu < 0.7
    True
    """
    if not jobs:
        return []
    run, calibrated = rows(jobs), read_fused()
    phases = predict_phases(run, calibrated.parameters)
    widths, measured = half_width(run, calibrated), measured_generations(calibrated)
    flops, sent = training_flops(run), sent_through_nics_bytes(run)
    stages = _stages(jobs, run)
    return [
        JobEstimate(
            job,
            {name: float(getattr(phases, name)[at]) for name in PHASES},
            float(np.hypot(widths[at], 0.0 if job.known else TRANSFER)),
            job.known and job.device.generation in measured,
            stages[at],
            float(flops[at]),
            float(sent[at]),
        )
        for at, job in enumerate(jobs)
    ]


def _stages(jobs: Sequence[ResolvedJob], run: Run) -> list[pd.DataFrame]:
    """Return a table per job with a row per pipeline stage."""
    counts = np.array([job.pp for job in jobs])
    at = np.repeat(np.arange(len(jobs)), counts)
    stage = np.concatenate([np.arange(count) for count in counts])
    many = run.rows(at)
    zero = np.array([float(job.zero) for job in jobs])[at]
    found = memory(many, stage, zero=zero)
    table = pd.DataFrame({name: getattr(found, name) for name in PARTS})
    table["framework"] = FRAMEWORK_BYTES
    whole = table.sum(axis=1)
    table["low"] = whole
    table["expected"], table["high"] = whole * (1 + FRAGMENTATION / 2), whole * (1 + FRAGMENTATION)
    table.insert(0, "stage", stage)
    return [part.reset_index(drop=True) for _, part in table.groupby(at)]


@dataclass(frozen=True)
class Change:
    """One change of a job, with the estimate that it gives."""

    words: str
    estimate: JobEstimate


def cheapest_fixes(one: JobEstimate, count: int = 3) -> list[Change]:
    """Return the changes that make a job fit and cost least GPU time per token, best first.

    Single changes, and pairs where none of them is enough.
    """
    single = [(words, changed(one.job)) for words, changed in _FIXES.items()]
    found = [change for change in _estimated(single) if change.estimate.memory_verdict == FITS]
    if len(found) < count:
        enough = {change.words for change in found}
        pairs = [
            (f"{first} and {second}", changed(other))
            for first, other in single
            for second, changed in _FIXES.items()
            if other is not None and first not in enough and second not in enough
        ]
        found += [one for one in _estimated(pairs) if one.estimate.memory_verdict == FITS]
    found.sort(key=lambda change: -change.estimate.tokens_per_s_per_gpu)
    # The same two changes in another order give the same estimate.
    different = {change.estimate.tokens_per_s_per_gpu: change for change in reversed(found)}
    return list(different.values())[::-1][:count]


def _with(**changes: Any) -> Callable[[ResolvedJob], ResolvedJob | None]:
    return lambda job: replace(job, **changes)


def _doubled(name: str) -> Callable[[ResolvedJob], ResolvedJob | None]:
    """Return a change in which half of the replicas become twice a parallel size."""

    def changed(job: ResolvedJob) -> ResolvedJob | None:
        if job.dp % 2:
            return None
        return replace(job, dp=job.dp // 2, **{name: 2 * getattr(job, name)})

    return changed


def _twice_the_gpus(job: ResolvedJob) -> ResolvedJob:
    return replace(job, gpus=2 * job.gpus, dp=2 * job.dp, global_batch=2 * job.global_batch)


def _without_stages(job: ResolvedJob) -> ResolvedJob:
    return replace(job, zero=3, dp=job.dp * job.pp, pp=1, vpp=1)


def _half_micro_batch(job: ResolvedJob) -> ResolvedJob | None:
    return None if job.micro_batch % 2 else replace(job, micro_batch=job.micro_batch // 2)


_FIXES: Mapping[str, Callable[[ResolvedJob], ResolvedJob | None]] = {
    "recompute selective": _with(recompute="selective"),
    "recompute full": _with(recompute="full"),
    "zero 1 (distributed optimizer)": lambda job: replace(job, zero=max(job.zero, 1)),
    "zero 3 (sharded weights, pp 1)": _without_stages,
    "gradients of 2 bytes": _with(gradient_bytes=2),
    "half the micro batch": _half_micro_batch,
    "twice tp, half dp": _doubled("tp"),
    "twice pp, half dp": _doubled("pp"),
    "twice cp, half dp": _doubled("cp"),
    "twice ep": lambda job: replace(job, ep=2 * job.ep),
    "twice the GPUs and the global batch": _twice_the_gpus,
}


def _estimated(tried: Sequence[tuple[str, ResolvedJob | None]]) -> list[Change]:
    """Estimate those of the changed jobs that can run."""
    found: list[tuple[str, ResolvedJob]] = []
    for words, job in tried:
        try:
            if job is not None:
                check(job)
                found.append((words, job))
        except ReproError:
            continue
    estimates = estimate([job for _, job in found])
    return [Change(words, one) for (words, _), one in zip(found, estimates, strict=True)]


def other_networks(one: JobEstimate) -> list[Change]:
    """Return the same job over other protocols and NICs, fastest first.

    None for a job that GPU links alone connect. TCP/IP has one port of 10 Gbit/s per node.
    """
    job = one.job
    if job.gpus <= job.device.domain_gpus:
        return []
    node, ipoib = job.nic_gbps, ipoib_share()
    rates = {
        f"NICs of {2 * node:g} Gbit/s per node": 2 * node,
        f"NICs of {node / 2:g} Gbit/s per node": node / 2,
        f"IPoIB on the same NICs ({100 * ipoib:.0f} % of RDMA)": node * ipoib,
        "TCP/IP over 10 Gbit/s Ethernet per node": read_protocols()["tcp"].effective_gbps,
    }
    found = _estimated([(words, with_nics(job, gbps)) for words, gbps in rates.items()])
    return sorted(found, key=lambda change: change.estimate.iteration_time_s)


def ipoib_share() -> float:
    """Return the fraction of RDMA's rate that the papers measured of IPoIB."""
    known = read_protocols()
    return known["ipoib"].effective_gbps / known["rdma"].effective_gbps


def with_nics(job: ResolvedJob, node_gbps: float) -> ResolvedJob:
    """Return a job whose nodes have NICs of another rate in all."""
    device = job.device.model_copy(update={"nic_gbps": node_gbps / job.gpus_per_node})
    return replace(job, device=device, nic_gbps=node_gbps)


def by_phase(one: JobEstimate) -> dict[str, float]:
    """Sum the phases of an iteration by what they are spent on, in seconds."""
    phases = one.phases_s
    return {
        "compute": sum(phases[name] for name in COMPUTING),
        **{f"{group} parallel": phases[name] for group, name in COMMUNICATION.items()},
        "pipeline bubble": phases["bubble"],
        "host launches": phases["host"],
        "optimizer": phases["optimizer"],
        "stragglers": phases["stragglers"],
    }
