"""Operators and iterations of this machine's CPU: what is measured, and predicted from it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import small_run

from repro.catalog.studies.operators import read_operator_study
from repro.experiments import measurement
from repro.experiments.machine import operators
from repro.predict.operators.trace_replay import iterations, operator_times
from repro.train.records import TrainingRun

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _small(enwiki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model, and operators that take a microsecond in the first of two rounds."""

    def run(name: str, *_: object, micro_batch_size: int) -> TrainingRun:
        return replace(small_run("gpt", enwiki), micro_batch_size=micro_batch_size)

    # They are set, and end with the test.
    for name in ("CUDA_VISIBLE_DEVICES", "KINETO_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(measurement, "RESULTS", tmp_path)
    study = read_operator_study()
    grids = {"sides": {"fp32": (8, 64)}, "batches": {"fp32": (8,)}, "batched_sides": {"fp32": (8,)}}
    grids |= dict.fromkeys(("elements", "rows", "widths", "lookups", "table_rows"), (8, 64))
    profile = study.profile("ci").model_copy(update={**grids, "rounds": 2})
    small = study.model_copy(update={"models": ("gpt",), "profiles": {"ci": profile}})
    monkeypatch.setattr(operators, "read_operator_study", lambda: small)
    monkeypatch.setattr(operators, "testbed_run", run)
    seconds = iter(np.arange(1, 100_000) * 1e-9)
    monkeypatch.setattr(operators, "operator_s", lambda *_: next(seconds))


def test_rounds_have_every_iteration_and_operator() -> None:
    measured = operators.measure_operators("ci")
    assert measured["case_samples"].values.tolist() == [4, 16]
    assert measured["iteration_time_s"].shape == (2, 2)
    assert (measured["iteration_time_s"] > 0).all()
    # Both rounds go through all operators in the same order.
    first, second = measured["benchmark_time_s"].values.T
    np.testing.assert_allclose(second - first, len(first) * 1e-9)
    # Shapes are those of the larger micro batch; no size of it is measured itself.
    (row,) = iterations(measured).itertuples()
    assert (row.samples, row.known_pct > 80) == (16, True)
    times = operator_times(measured)
    assert {"product nt fp32", "_fused_adamw_/1 fp32", "_softmax fp32"} <= set(times.index)
