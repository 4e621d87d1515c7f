"""Estimates of jobs as text and as JSON (docs/reference/json.md)."""

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd

from repro.catalog.jobs import ResolvedJob
from repro.predict.explore.jobs.estimate import (
    FITS,
    PARTS,
    Change,
    JobEstimate,
    by_phase,
    cheapest_fixes,
    other_networks,
)
from repro.predict.explore.jobs.explain import Measured

_GIB = 2**30
_PLAN = (
    *("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch", "global_batch"),
    *("precision", "stack", "recompute", "zero", "gradient_bytes", "lora_rank"),
    *("expert_imbalance", "overlap"),
)
# Parts of a table's row that name a phase shorter than this share of the iteration.
_SHOWN_PHASE = 0.001
_SHOWN_STAGES = 8


def report_text(one: JobEstimate, measured: Measured | None = None) -> str:
    """Format an estimate: the job, memory, the iteration by phase, and other networks."""
    job = one.job
    parts = [_job_text(job, _calibration_text(one)), "", _memory_text(one), "", _time_text(one)]
    networks = other_networks(one)
    if networks:
        parts += ["", "The same job over other networks:", _changes_text(networks, one)]
    if measured is not None:
        parts += ["", measured_text(measured)]
    return "\n".join(parts)


def _calibration_text(one: JobEstimate) -> str:
    if one.calibrated:
        return ""
    if not one.job.known:
        return ", data sheet of your own (not calibrated, wider interval)"
    generation = one.job.device.generation
    return f" (not calibrated: no runs of generation {generation}, wider interval)"


def _job_text(job: ResolvedJob, calibration: str) -> str:
    shape = job.shape
    total = shape.count(shape.experts) / 1e9
    active = f", {shape.count(shape.experts_per_token) / 1e9:.4g}B active" if shape.experts else ""
    plan = " ".join(f"{name}={getattr(job, name)}" for name in _PLAN[:9])
    lines = [
        f"{job.label} ({total:.4g}B parameters{active}), sequences of {shape.seq} tokens",
        f"on {job.gpus} x {job.device.label}{calibration}, {job.gpus_per_node} per node with NICs "
        f"of {job.nic_gbps:g} Gbit/s",
        f"{plan}, {job.precision}, recompute {job.recompute}, zero {job.zero}, gradients of "
        f"{job.gradient_bytes} bytes, {job.stack}"
        + (f", LoRA of rank {job.lora_rank}" if job.lora_rank else ""),
    ]
    if job.notes:
        lines += textwrap.wrap("assumed: " + "; ".join(job.notes), 100, subsequent_indent="  ")
    return "\n".join(lines)


def _memory_text(one: JobEstimate) -> str:
    there = one.job.device.memory_bytes
    shown = one.stages
    if len(shown) > _SHOWN_STAGES:
        # The first stage, the fullest one and the last.
        fullest = int(shown.high.argmax())
        shown = shown.iloc[sorted({0, fullest, len(shown) // 2, len(shown) - 1})]
    table = (shown[[*PARTS, "framework", "low", "high"]] / _GIB).round(1)
    table.insert(0, "stage", shown.stage)
    low, high = one.stages.low.max() / _GIB, one.stages.high.max() / _GIB
    text = (
        f"Memory: {one.memory_verdict}; the fullest GPU takes {low:.1f} to {high:.1f} GiB of "
        f"{there / _GIB:.1f}\n{table.to_string(index=False)}  (GiB)"
    )
    if one.memory_verdict == FITS:
        return text
    fixes = cheapest_fixes(one)
    if not fixes:
        return f"{text}\nno change of one or two sizes makes it fit"
    return f"{text}\nmakes it fit, least GPU time per token first:\n{_changes_text(fixes, one)}"


def _time_text(one: JobEstimate) -> str:
    low, high = one.interval_s
    total = one.iteration_time_s
    flops = one.flops / total / one.job.gpus / 1e12
    shares = [
        f"  {name:18} {seconds:8.3g} s {100 * seconds / total:5.1f} %"
        for name, seconds in by_phase(one).items()
        if seconds > _SHOWN_PHASE * total
    ]
    lines = [
        f"Iteration: {total:.3g} s (90 %: {low:.3g} to {high:.3g}), "
        f"{one.tokens_per_s_per_gpu:.0f} tokens/s per GPU, {flops:.0f} TFLOP/s per GPU",
        f"MFU {100 * one.mfu:.0f} % of {one.peak_flops / 1e12:.0f} TFLOP/s (dense "
        f"{one.job.precision}); NICs {one.nic_gbps:.0f} of {one.job.nic_gbps:g} Gbit/s per node",
        *shares,
    ]
    return "\n".join(lines)


def _changes_text(changes: Sequence[Change], base: JobEstimate) -> str:
    throughput = base.tokens_per_s_per_gpu
    rows = [
        (
            change.words,
            f"{change.estimate.iteration_time_s:.3g} s",
            f"{100 * (change.estimate.tokens_per_s_per_gpu / throughput - 1):+.0f} %",
        )
        for change in changes
    ]
    width = max(len(words) for words, _, _ in rows)
    return "\n".join(
        f"  {words:{width}}  {time:>8}  tokens/s per GPU {gain}" for words, time, gain in rows
    )


def measured_text(measured: Measured) -> str:
    """Format a measured time, its verdict and explanations."""
    one = measured.estimate
    low, high = one.interval_s
    ratio = measured.time_s / one.iteration_time_s
    text = (
        f"Measured: {measured.time_s:.3g} s, {ratio:.2f} times the expected time: "
        f"{measured.verdict} (90 %: {low:.3g} to {high:.3g} s)"
    )
    if not measured.explanations:
        return text
    rows = [
        f"  {change.estimate.iteration_time_s - one.iteration_time_s:+8.3g} s -> "
        f"{change.estimate.iteration_time_s:.3g} s  {change.words}"
        for change in measured.explanations
    ]
    return "\n".join([text, "would explain it, nearest first:", *rows])


def report_json(one: JobEstimate, measured: Measured | None = None) -> dict[str, Any]:
    """Return an estimate as plain data; fields are documented in docs/reference/json.md."""
    job = one.job
    low, high = one.interval_s
    shape = job.shape
    report: dict[str, Any] = {
        "job": {
            "model": job.label,
            "parameters": shape.count(shape.experts),
            "active_parameters": shape.count(shape.experts_per_token),
            "seq": shape.seq,
            "gpu": job.device.label,
            "calibrated": one.calibrated,
            "gpus": job.gpus,
            "gpus_per_node": job.gpus_per_node,
            "nic_gbps": job.nic_gbps,
            **{name: getattr(job, name) for name in _PLAN},
            "notes": list(job.notes),
        },
        "memory": {
            "verdict": one.memory_verdict.replace(" ", "_"),
            "gpu_bytes": job.device.memory_bytes,
            "low_bytes": float(one.stages.low.max()),
            "expected_bytes": float(one.stages.expected.max()),
            "high_bytes": float(one.stages.high.max()),
            "stages": _stages_json(one.stages),
            "fixes": [] if one.memory_verdict == FITS else changes_json(cheapest_fixes(one)),
        },
        "iteration_time_s": {"expected": one.iteration_time_s, "low": low, "high": high},
        "phases_s": {name.replace(" ", "_"): seconds for name, seconds in by_phase(one).items()},
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "tflops_per_gpu": one.flops / one.iteration_time_s / job.gpus / 1e12,
        "mfu": one.mfu,
        "peak_tflops": one.peak_flops / 1e12,
        "nic_gbps": one.nic_gbps,
        "networks": changes_json(other_networks(one)),
    }
    if measured is not None:
        report["measured"] = {
            "iteration_time_s": measured.time_s,
            "verdict": measured.verdict.replace(" ", "_"),
            "explanations": changes_json(measured.explanations),
        }
    return report


def _stages_json(stages: pd.DataFrame) -> list[dict[str, Any]]:
    renamed = stages.rename(columns={name: f"{name}_bytes" for name in stages if name != "stage"})
    return [{str(name): value for name, value in row.items()} for row in renamed.to_dict("records")]


def changes_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return changes as plain data."""
    return [
        {
            "change": change.words,
            "iteration_time_s": change.estimate.iteration_time_s,
            "tokens_per_s_per_gpu": change.estimate.tokens_per_s_per_gpu,
        }
        for change in changes
    ]


def report_table(estimates: Sequence[JobEstimate]) -> pd.DataFrame:
    """Return one row per job: sizes, verdict on memory, and time with its interval."""
    return pd.DataFrame(
        [
            {
                "model": one.job.label,
                "gpu": one.job.device.label,
                "gpus": one.job.gpus,
                **{name: getattr(one.job, name) for name in _PLAN[:9]},
                "memory": one.memory_verdict,
                "memory_gib": one.stages.expected.max() / _GIB,
                "iteration_time_s": one.iteration_time_s,
                "low_s": one.interval_s[0],
                "high_s": one.interval_s[1],
                "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
                "mfu": one.mfu,
            }
            for one in estimates
        ]
    )
