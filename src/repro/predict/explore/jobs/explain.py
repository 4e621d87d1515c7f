"""Explanations of a measured iteration that differs from its estimate, each with its size."""

import math
import re
from dataclasses import dataclass, replace

from repro.catalog.jobs import ResolvedJob
from repro.catalog.models.layers import attentions, layer_kinds
from repro.catalog.systems.protocols import read_protocols
from repro.errors import ReproError
from repro.predict.explore.jobs.estimate import (
    Change,
    JobEstimate,
    estimate,
    ipoib_share,
    with_nics,
)
from repro.predict.fused.run import peak_flops

_VALUE = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*([kKM]?)\s*(\S.*)?")
_SCALES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}
# Spellings of units, without spaces and in lower case.
_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "s/iter": 1.0, "s/it": 1.0, "ms": 1e-3}
_TOKENS = ("tokens/s", "tok/s", "tps", "tokens/sec", "tok/sec")
_PER_GPU = ("/gpu", "/device", "/rank")
_FLOPS = ("tflop/s", "tflops", "tflop/s/gpu", "tflops/gpu", "tflops/s/gpu", "tflops/s")
_MFU = ("%", "%mfu", "mfu")
# FLOPs of an iteration that tools divide by its time: causal attention counts half of the scores
# (this package), Megatron-LM counts all of them, `6n` counts none.
FORMULAS = ("causal", "megatron", "6n")
# Formulas that differ by less need not be told apart.
_ALIKE = 0.03
# Slowdowns of the slowest rank, and shares of tokens of the busiest expert, that are tried.
_STRAGGLERS, _IMBALANCES = (1.1, 1.25), (1.5, 2.0)


@dataclass(frozen=True)
class Measured:
    """Measured iteration beside its estimate.

    `verdict` is `as expected`, `slower` or `faster` than the 90 % interval. `explanations` would
    each bring the estimate nearer to it, best first.
    """

    time_s: float
    estimate: JobEstimate
    explanations: tuple[Change, ...]

    @property
    def verdict(self) -> str:
        """Where the measured time is, relative to the interval."""
        low, high = self.estimate.interval_s
        if self.time_s > high:
            return "slower"
        return "faster" if self.time_s < low else "as expected"


def explain(
    one: JobEstimate, text: str, *, peak_tflops: float | None = None, formula: str | None = None
) -> Measured:
    """Compare a measured value with an estimate, and rank what would explain the difference.

    Parameters
    ----------
    text
        Seconds per iteration (`4.2s`), tokens per second of all GPUs or of one (`9500
        tokens/s/GPU`), `410 TFLOP/s` per GPU, or `38 %` MFU.
    peak_tflops
        Peak that the MFU refers to. Default: the dense one, where there is only one.
    formula
        FLOPs that were counted, of `FORMULAS`.

    Raises
    ------
    ReproError
        The value has no unit that is known, does not say what it refers to, or has no use for what
        is given.
    """
    time_s = measured_time_s(one, text, peak_tflops, formula)
    tried = _explanations(one.job, one, time_s)
    gap = abs(time_s - one.iteration_time_s)
    helps = [
        change for change in tried if abs(change.estimate.iteration_time_s - time_s) < 0.95 * gap
    ]
    helps.sort(key=lambda change: abs(change.estimate.iteration_time_s - time_s))
    return Measured(time_s, one, tuple(helps))


def measured_time_s(
    one: JobEstimate, text: str, peak_tflops: float | None, formula: str | None
) -> float:
    """Return the seconds of an iteration that a measured value states."""
    found = _VALUE.fullmatch(text.strip())
    unit = re.sub(r"\s+", "", found[3] or "").lower() if found else ""
    try:
        value = float(found[1]) * _SCALES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if not found or value <= 0:
        raise ReproError(f"measured {text!r}: no positive number with a unit, such as 4.2s")
    job = one.job
    for option, given, units in (("flops", formula, (*_FLOPS, *_MFU)), ("peak", peak_tflops, _MFU)):
        if given is not None and unit not in units:
            raise ReproError(f"{option} {given} beside measured {text!r}: not used; fix: omit it")
    if unit in _SECONDS:
        return value * _SECONDS[unit]
    gpu = next((end for end in _PER_GPU if unit.endswith(end)), "")
    if unit.removesuffix(gpu) in _TOKENS:
        return job.tokens / value / (job.gpus if gpu else 1)
    if unit in _FLOPS:
        return _counted_flops(one, formula) / (1e12 * value * job.gpus)
    if unit in _MFU:
        share = value / 100 if "%" in unit or value > 1 else value
        return _counted_flops(one, formula) / (share * _peak_flops(one, peak_tflops) * job.gpus)
    raise ReproError(
        f"measured {text!r}: unit {found[3] or ''!r} is not understood; choose from: s, ms, "
        "tokens/s, tokens/s/GPU, TFLOP/s, % (MFU)"
    )


def _peak_flops(one: JobEstimate, peak_tflops: float | None) -> float:
    """Return the peak of an MFU, which must be stated where a precision has a peak of its own."""
    if peak_tflops is not None:
        if not 0 < peak_tflops < math.inf:
            raise ReproError(f"peak {peak_tflops:g} TFLOP/s: take a number above 0")
        return 1e12 * peak_tflops
    half, own = one.job.device.peak_flops, peak_flops(one.job.device, one.job.precision)
    if half != own:
        raise ReproError(
            f"MFU of which peak? {one.job.device.label} has {half / 1e12:g} TFLOP/s in bf16 and "
            f"{own / 1e12:g} in {one.job.precision} (dense); fix: --peak-tflops N"
        )
    return float(half)


def _counted_flops(one: JobEstimate, formula: str | None) -> float:
    """Return the FLOPs of an iteration by a formula, which must be stated where they differ."""
    shape, tokens = one.job.shape, one.job.tokens
    scores = sum(
        count * 4 * of.heads * of.mean_dim * shape.seq
        for count, layer in layer_kinds(shape)
        for of in attentions(layer)
    )
    active = shape.count(shape.experts_per_token) - shape.vocab * shape.hidden * (not shape.tied)
    by_formula = {
        "causal": one.flops,
        "megatron": one.flops + 3 * tokens * scores / 2,
        "6n": 6.0 * active * tokens,
    }
    if formula is not None:
        if formula not in by_formula:
            raise ReproError(f"FLOP formula {formula!r}; choose from: {', '.join(FORMULAS)}")
        return float(by_formula[formula])
    least, most = min(by_formula.values()), max(by_formula.values())
    if most > (1 + _ALIKE) * least:
        listed = ", ".join(f"{name} {flops / 1e15:.4g}" for name, flops in by_formula.items())
        raise ReproError(
            f"FLOPs by which formula? They differ (PFLOP per iteration: {listed}); causal counts "
            "half of the scores, megatron all, 6n none; fix: --flops NAME"
        )
    return one.flops


def _explanations(job: ResolvedJob, one: JobEstimate, time_s: float) -> list[Change]:
    """Estimate the job with one thing changed at a time, of what could explain the difference."""
    several = job.gpus > job.device.domain_gpus
    tried: list[tuple[str, ResolvedJob]] = [
        ("full recomputation that was not meant", replace(job, recompute="full")),
        ("no recomputation", replace(job, recompute="none")),
        ("no overlap of communication with computing", replace(job, overlap="none")),
        ("gradients in fp32", replace(job, gradient_bytes=4)),
        ("gradients in half precision", replace(job, gradient_bytes=2)),
        ("products in bf16", replace(job, precision="bf16")),
    ]
    if several:
        nics = max(round(job.nic_gbps / 400), 1) if job.nic_gbps >= 400 else 1
        tried += [
            ("one link at half its rate, or half of the NICs", with_nics(job, job.nic_gbps / 2)),
            ("sockets (IPoIB) instead of RDMA", with_nics(job, job.nic_gbps * ipoib_share())),
            (
                "TCP/IP over 10 Gbit/s Ethernet",
                with_nics(job, read_protocols()["tcp"].effective_gbps),
            ),
        ]
        if nics > 1:
            tried.append((f"one NIC of {nics} in use", with_nics(job, job.nic_gbps / nics)))
    if job.shape.experts and job.ep > 1:
        tried += [
            (
                f"uneven experts (busiest rank {ratio:g} x the mean)",
                replace(job, expert_imbalance=ratio),
            )
            for ratio in _IMBALANCES
            if ratio > job.expert_imbalance
        ]
    if job.pp > 1:
        half = job.micro_batch * job.dp
        fewer = max(job.micro_batches // 2, 1) * half
        tried.append(
            ("half of the micro batches (larger bubble)", replace(job, global_batch=fewer))
        )
    different = [(words, other) for words, other in tried if other != job]
    estimates = estimate([other for _, other in different])
    found = [
        Change(words, _scaled(other, job.tokens / other.job.tokens))
        for (words, _), other in zip(different, estimates, strict=True)
    ]
    found += [
        Change(f"a rank that is {100 * (ratio - 1):.0f} % slower", _scaled(one, ratio))
        for ratio in _STRAGGLERS
    ]
    return found


def _scaled(one: JobEstimate, factor: float) -> JobEstimate:
    """Return an estimate whose iteration takes `factor` times as long."""
    return replace(one, phases_s={name: factor * value for name, value in one.phases_s.items()})
