"""Runs of a training log beside their estimates: what they took, what to expect, what differs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.catalog.jobs import Job, ResolvedJob, job_of, resolve
from repro.catalog.systems.gpus import find_gpu_name, read_gpus
from repro.errors import ReproError
from repro.logs.training.reading import TrainingLog, read_training_file
from repro.logs.training.runs import KINDS, LoggedRun
from repro.predict.explore.jobs.estimate import JobEstimate, by_phase, estimate, rows
from repro.predict.explore.jobs.estimate_report import changes_json, measured_text, report_text
from repro.predict.explore.jobs.explain import Measured, explain
from repro.predict.fused.run import Run
from repro.predict.workload import Array

# Fields of a job that logs state.
_FROM_LOGS = (
    *("gpus", "tp", "pp", "cp", "ep", "micro_batch", "global_batch", "seq"),
    "vocabulary",
)
# Those that stay where the log has arguments, which state the others.
_BESIDE_ARGUMENTS = ("model", "gpus", "gpu", "vocabulary")
# What a run must state to be predicted, and the options that give it.
_NEEDED = {
    "model": "--model NAME or config.json",
    "gpu": "--gpu NAME or --cluster NAME",
    "gpus": "--gpus N",
}
# Megatron's timers of each part of an iteration. Collectives inside layers are within the passes.
_TIMERS: Mapping[str, tuple[str, ...]] = {
    "forward and backward": ("forward-compute", "backward-compute"),
    "data parallel": (
        *("backward-params-all-reduce", "backward-layernorm-all-reduce", "grads-all-reduce"),
        *("grads-reduce-scatter", "params-all-gather", "all-grads-sync"),
    ),
    "pipeline": (
        *("forward-recv", "forward-send", "backward-recv", "backward-send"),
        *("forward-send-backward-recv", "backward-send-forward-recv"),
        *("forward-send-forward-recv", "backward-send-backward-recv"),
        *("backward-embedding-all-reduce", "embedding-grads-all-reduce"),
    ),
    "optimizer": ("optimizer",),
}
PARTS = (*_TIMERS, "other")
_UNKNOWN_BATCH = "tokens of an iteration are not stated; give --global-batch N, --seq N"
_SHOWN_EXPLANATIONS = 5


@dataclass(frozen=True)
class JudgedRun:
    """Run of a log, and its measured time beside the estimate; `missing` says why there is none."""

    run: LoggedRun
    measured: Measured | None
    missing: str

    @property
    def verdict(self) -> str:
        """Where the run is, relative to the interval: `as expected`, `slower`, `faster`; or ''."""
        return self.measured.verdict if self.measured else ""


def judge(log: TrainingLog, given: Mapping[str, Any]) -> list[JudgedRun]:
    """Predict each run of a log with what it states and what is given; the latter wins.

    Raises
    ------
    ReproError
        What is given is not allowed, or contradicts the arguments in the log.
    """
    return [_judge(run, log, given) for run in log.runs]


@dataclass(frozen=True)
class MeasuredRuns:
    """Runs of logs that can be predicted, and what they took.

    `names` are files with the number of the run; `left_out` are names with why a run has no
    prediction; `gpus` are the catalogued GPUs that were used.
    """

    names: tuple[str, ...]
    run: Run
    measured_s: Array
    gpus: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def source(self) -> str:
        """The runs in a phrase."""
        return f"runs of logs: {len(self.names)}"


def measured_runs(files: Sequence[Path], given: Mapping[str, Any]) -> MeasuredRuns:
    """Read the runs of training logs; fields of a job that are given say what the logs omit.

    Raises
    ------
    ReproError
        A file cannot be read, or no run can be predicted.
    """
    found = {
        f"{file.name}, run {number}": one
        for file in files
        for number, one in enumerate(judge(read_training_file(file)[1], given), 1)
    }
    measured = {name: one.measured for name, one in found.items() if one.measured is not None}
    left_out = tuple(f"{name}: {one.missing}" for name, one in found.items() if one.missing)
    if not measured:
        raise ReproError(f"no run of the logs can be predicted: {left_out[0]}")
    jobs = [one.estimate.job for one in measured.values()]
    labels = {entry.label: name for name, entry in read_gpus().items()}
    return MeasuredRuns(
        names=tuple(measured),
        run=rows(jobs),
        measured_s=np.array([one.time_s for one in measured.values()]),
        gpus=tuple(labels[one.device.label] for one in jobs if one.device.label in labels),
        left_out=left_out,
    )


def _judge(run: LoggedRun, log: TrainingLog, given: Mapping[str, Any]) -> JudgedRun:
    fields = _fields(run, log, given)
    missing = [how for name, how in _NEEDED.items() if name not in fields]
    if "gpu" not in fields and "cluster" in fields:
        missing.remove(_NEEDED["gpu"])
    if missing:
        return JudgedRun(run, None, f"not stated by the log; give {', '.join(missing)}")
    job = resolve(job_of(fields))
    value = _measured(run, fields, job)
    if value is None:
        return JudgedRun(run, None, _UNKNOWN_BATCH)
    return JudgedRun(run, explain(estimate([job])[0], value), "")


def _fields(run: LoggedRun, log: TrainingLog, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a job: those that the log states, replaced by those that are given."""
    fields: dict[str, Any] = {}
    if run.arguments:
        fields["model"] = run.arguments
    for name in _FROM_LOGS:
        if name in run.stated:
            fields[name] = int(run.stated[name])
    batch = run.middle("global_batch")
    if batch is not None:
        fields["global_batch"] = int(batch)
    if log.device and "gpu" not in given and "cluster" not in given:
        with suppress(ReproError):
            fields["gpu"] = find_gpu_name(log.device)
    if run.arguments:
        # Arguments state the plan; sizes that the log prints beside them are the same ones.
        fields = {name: fields[name] for name in _BESIDE_ARGUMENTS if name in fields}
    return {name: value for name, value in {**fields, **given}.items() if name in Job.model_fields}


def _measured(run: LoggedRun, fields: Mapping[str, Any], job: ResolvedJob) -> str | None:
    """Return what a run took, as `explain` takes it; a time counts if its tokens are known."""
    time_s, own = run.middle("time_s"), run.middle("tokens_per_s_per_gpu")
    every, samples = run.middle("tokens_per_s"), run.middle("samples_per_s")
    if time_s is not None and (run.arguments or fields.keys() >= {"global_batch", "seq"}):
        return f"{time_s!r} s"
    if own is not None:
        return f"{own!r} tokens/s/GPU"
    if every is not None:
        return f"{every!r} tokens/s"
    return f"{samples * job.shape.seq!r} tokens/s" if samples is not None else None


def measured_parts(run: LoggedRun) -> dict[str, float]:
    """Sum the timers of a run by `PARTS`, in seconds; empty if they do not cover an iteration.

    Only Megatron's timers of forward and backward passes do. `other` is the time of no timer.
    """
    total = run.middle("time_s")
    if total is None or not run.phases_s.keys() >= {"forward-compute", "backward-compute"}:
        return {}
    found = {
        part: sum(run.phases_s.get(timer, 0.0) for timer in timers)
        for part, timers in _TIMERS.items()
    }
    return {**found, "other": max(total - sum(found.values()), 0.0)}


def predicted_parts(one: JobEstimate) -> dict[str, float]:
    """Sum the phases of an estimate by `PARTS`, in seconds."""
    phases = by_phase(one)
    return {
        PARTS[0]: sum(
            phases[name]
            for name in (
                *("compute", "tensor parallel", "context parallel", "expert parallel"),
                "host launches",
            )
        ),
        "data parallel": phases["data parallel"],
        "pipeline": phases["pipeline parallel"] + phases["pipeline bubble"],
        "optimizer": phases["optimizer"],
        "other": phases["stragglers"],
    }


def log_text(log: TrainingLog, judged: list[JudgedRun]) -> str:
    """Format a log: what was recognized, and each run with its verdict."""
    device = f"; the GPU is called {log.device}" if log.device else ""
    parts = [f"{log.recognized} of {log.lines} lines are iterations{device}"]
    for number, one in enumerate(judged, start=1):
        title = f"run {number} of {len(judged)}, " if len(judged) > 1 else ""
        parts += ["", f"{title}{_run_text(one.run)}"]
        if one.measured is None:
            parts.append(f"no prediction: {one.missing}")
        else:
            parts += ["", report_text(one.measured.estimate), "", measured_text(one.measured)]
    return "\n".join(parts)


def _run_text(run: LoggedRun) -> str:
    kinds = run.steps.kind.value_counts()
    count = ", ".join(f"{kinds[kind]} {kind}" for kind in KINDS if kind in kinds)
    lines = [f"{run.tool}: {len(run.steps)} iterations ({count})"]
    shown = {
        "time_s": ("s per iteration", 1.0),
        "tokens_per_s_per_gpu": ("tokens/s per GPU", 1.0),
        "tokens_per_s": ("tokens/s", 1.0),
        "samples_per_s": ("sequences/s", 1.0),
        "tflops_per_gpu": ("TFLOP/s per GPU (the tool's count)", 1.0),
        "mfu": ("% MFU (the tool's peak)", 100.0),
        "memory_bytes": ("GiB of a GPU", 2.0**-30),
    }
    for name, (unit, scale) in shown.items():
        value = run.middle(name)
        if value is not None:
            lines.append(f"  {scale * value:.4g} {unit}")
    total = run.middle("time_s")
    for name, seconds in sorted(run.phases_s.items(), key=lambda item: -item[1])[:12]:
        share = f" {100 * seconds / total:5.1f} %" if total else ""
        lines.append(f"  timer {name:32} {seconds:8.4g} s{share}")
    lines += [f"  note: {warning}" for warning in run.warnings]
    return "\n".join(lines)


def log_json(log: TrainingLog, judged: list[JudgedRun]) -> dict[str, Any]:
    """Return a log as plain data; fields are documented in docs/reference/json_log.md."""
    return {
        "tool": log.runs[0].tool,
        "lines": log.lines,
        "recognized_lines": log.recognized,
        "device": log.device,
        "runs": [_run_json(one) for one in judged],
    }


def _run_json(one: JudgedRun) -> dict[str, Any]:
    run = one.run
    times = run.steady.time_s.dropna().astype(float)
    spread: dict[str, float | None] | None = None
    if len(times):
        low, high = times.quantile([0.05, 0.95])
        spread = {"median": float(times.median()), "low": float(low), "high": float(high)}
    elif one.measured is not None:
        spread = {"median": one.measured.time_s, "low": None, "high": None}
    estimated = one.measured.estimate if one.measured else None
    gpus = estimated.job.gpus if estimated else run.stated.get("gpus")
    return {
        "tool": run.tool,
        "iterations": len(run.steps),
        "kinds": {str(kind): int(count) for kind, count in run.steps.kind.value_counts().items()},
        "iteration_time_s": spread,
        "gpus": None if gpus is None else int(gpus),
        **{
            name: run.middle(name)
            for name in (
                *("tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s"),
                *("tflops_per_gpu", "mfu", "memory_bytes", "global_batch"),
            )
        },
        "phases": dict(run.phases_s),
        "stated": dict(run.stated),
        "warnings": list(run.warnings),
        "verdict": one.verdict.replace(" ", "_") or None,
        "missing": one.missing or None,
        "expected": _expected_json(estimated) if estimated else None,
        "explanations": changes_json(one.measured.explanations[:_SHOWN_EXPLANATIONS])
        if one.measured
        else [],
    }


def _expected_json(one: JobEstimate) -> dict[str, Any]:
    low, high = one.interval_s
    return {
        "iteration_time_s": {"expected": one.iteration_time_s, "low": low, "high": high},
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "phases_s": by_phase(one),
        "assumed": list(one.job.notes),
    }
