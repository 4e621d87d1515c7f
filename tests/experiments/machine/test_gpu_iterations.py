"""Iterations of a GPU, with this machine's CPU in its place: what is measured, and kept of it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import small_run

from repro.catalog.studies.gpu import GpuIterations, read_gpu_study
from repro.experiments.machine import gpu_iterations
from repro.logs.operator_trace import PARTS
from repro.observe.operator_trace import trace_of
from repro.predict.operators.trace_replay import iterations
from repro.train import run as training
from repro.train.megatron.steps import Batch
from repro.train.records import TrainingRun
from repro.train.training import Training

pytestmark = pytest.mark.slow

_KERNEL_US = 5.0


def _with_kernels(step: Callable[[], object], *_: object) -> str:
    """A trace of the CPU, as if every innermost operator had launched a kernel."""
    trace = json.loads(trace_of(step))
    ops = [one for one in trace["traceEvents"] if one.get("cat") == "cpu_op"]
    begun = sorted(ops, key=lambda one: (one["tid"], one["ts"], -one["dur"]))
    for one, after in zip(begun, [*begun[1:], None], strict=True):
        innermost = (
            after is None or after["tid"] != one["tid"] or after["ts"] >= one["ts"] + one["dur"]
        )
        if innermost and one["name"].startswith("aten::") and one["args"].get("Input Dims"):
            trace["traceEvents"].append(
                {
                    **{"ph": "X", "cat": "kernel", "name": "some kernel", "pid": 0, "tid": 7},
                    **{"ts": one["ts"], "dur": _KERNEL_US},
                    "args": {"External id": one["args"]["External id"]},
                }
            )
    return json.dumps(trace)


@pytest.fixture
def asked() -> GpuIterations:
    study = read_gpu_study().iterations
    smaller = {"dense": 4, "width": 8, "bottom": (16,), "top": (16,), "batch": 4}
    return study.model_copy(
        update={
            **{"models": ("gpt2-medium", "t5-large"), "micro_batches": (1, 2), "table_sets": 2},
            **{"dlrm": study.dlrm.model_copy(update=smaller), "samples": (4, 8)},
            "tables": study.tables.model_copy(update={"count": (2, 3), "rows": (10, 50)}),
            **{"precision": "fp32", "warmup": 1, "iterations": 2},
            **{name: (8, 64) for name in ("elements", "rows", "widths", "lookups", "bags")},
            **{name: (8, 64) for name in ("table_rows", "embedding_widths")},
            **{name: {"fp32": (8, 64)} for name in ("sides", "batches", "batched_sides")},
        }
    )


@pytest.fixture(autouse=True)
def _on_this_cpu(enwiki: Path, cuda_means_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models, and operators that take a microsecond or cannot be captured."""

    def run(
        name: str, precision: str, samples: int, warmup: int, iterations: int, *_: object
    ) -> TrainingRun:
        small = small_run("t5" if name == "t5-large" else "gpt", enwiki)
        return replace(small, micro_batch_size=samples, warmup=warmup, iterations=iterations)

    def call_s(operator: str, precisions: object, sizes: object, *_: object) -> list[float]:
        if operator == "tanh/1":
            raise RuntimeError("operation not permitted when stream is capturing")
        return [1e-6, 2e-6, 9e-6]

    monkeypatch.setattr(gpu_iterations, "_DEVICE", "cpu")
    monkeypatch.setattr(gpu_iterations, "gpu_run", run)
    monkeypatch.setattr(gpu_iterations, "call_s", call_s)
    monkeypatch.setattr(gpu_iterations, "trace_of", _with_kernels)


def test_iterations_are_kept_with_their_calls_and_operators(
    asked: GpuIterations, enwiki: Path
) -> None:
    found = gpu_iterations.measure_gpu_iterations(asked, enwiki, "95,5")
    assert found["case_model"].values.tolist() == [
        *2 * ["gpt2-medium"],
        *2 * ["t5-large"],
        *3 * ["dlrm"],
    ]
    assert found["case_samples"].values.tolist() == [1, 2, 1, 2, 4, 8, 8]
    parts_s = found["part_time_s"].isel(case=slice(0, 4)).sum("part")
    np.testing.assert_allclose(parts_s, found["iteration_time_s"].isel(case=slice(0, 4)))
    assert found["part_time_s"].isel(case=slice(4, None)).isnull().all()
    again = iterations(found)
    assert again[["model", "samples"]].to_numpy().tolist() == [
        ["gpt2-medium", 2],
        ["t5-large", 2],
        *2 * [["dlrm", 8]],
    ]
    assert np.isfinite(again.error_pct).all() and (again.known_pct < 100).any()
    kernels = found["call_launches"].values
    np.testing.assert_allclose(found["call_busy_s"], kernels * _KERNEL_US * 1e-6, rtol=1e-6)
    # Backward passes are behind the forward ones, what steps is behind both.
    for _, part in found["call_part"].groupby(found["call_case"]):
        assert (np.diff(part) >= 0).all() and set(part.values) == set(range(len(PARTS)))


def test_what_has_no_memory_leaves_the_others(
    asked: GpuIterations, enwiki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def iterate(state: Training, batches: Sequence[Batch]) -> float:
        if state.run.micro_batch_size == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate all of it")
        return within(state, batches)

    within = training.iterate
    monkeypatch.setattr(training, "iterate", iterate)
    fewer = asked.model_copy(update={"models": ("gpt2-medium",), "micro_batches": (1, 2, 3)})
    found = gpu_iterations.measure_gpu_iterations(fewer, enwiki, "95,5")
    assert found["case_samples"].values.tolist() == [1, 3, 4, 8, 8]
    assert "CUDA out of memory" in json.loads(found.attrs["not_run"])["gpt2-medium 2"]
