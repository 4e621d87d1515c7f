"""A fit to one's own runs finds what differs, moves nothing else, and says how well it predicts."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from repro.catalog.jobs import job_of, resolve
from repro.paths import PUBLISHED
from repro.predict.calibration.own_runs import fit_own_runs
from repro.predict.explore.jobs.estimate import rows
from repro.predict.fused.iteration import iteration_times_s
from repro.predict.fused.parameters import read_fused
from repro.predict.fused.run import Run

_LOG = PUBLISHED / "logs" / "megatron_gpt2_32_v100.txt"


def _runs(*plans: tuple[int, int]) -> Run:
    """Llama 3.1 8B on H100, by tensor parallel size and GPUs."""
    return rows(
        [
            resolve(
                job_of(
                    {"model": "llama3.1-8b", "gpu": "h100", "gpus": gpus, "tp": tp}
                    | {"global_batch": 256, "nic": "1x400"}
                )
            )
            for tp, gpus in plans
        ]
    )


def test_slow_links_between_nodes_are_found_and_predict_runs_left_out() -> None:
    run, published = _runs((1, 32), (1, 64), (2, 64), (2, 128), (1, 128)), read_fused()
    slow = published.parameters.model_copy(update={"fabric_efficiency": 0.7})
    found = fit_own_runs(run, iteration_times_s(run, slow), ("h100-sxm-80gb",), "made-up runs")
    errors = found.runs.abs().mean()
    assert errors.published_pct > 5
    assert errors.held_out_pct < errors.published_pct / 3
    fitted = found.calibration.parameters
    assert fitted.fabric_efficiency < published.parameters.fabric_efficiency - 0.03
    # No run computes on other GPUs, or exchanges tokens of experts.
    for name, value in fitted.sustained.items():
        if not name.startswith("hopper"):
            assert value == pytest.approx(published.parameters.sustained[name])
    assert fitted.exchange_efficiency == pytest.approx(published.parameters.exchange_efficiency)
    assert found.calibration.residuals == published.residuals


def test_runs_as_published_move_nothing() -> None:
    run, published = _runs((1, 32), (2, 64)), read_fused()
    measured_s = iteration_times_s(run, published.parameters)
    found = fit_own_runs(run, measured_s, (), "made-up runs")
    assert found.calibration.parameters.launch_s == pytest.approx(published.parameters.launch_s)
    np.testing.assert_allclose(found.runs[["published_pct", "fitted_pct"]], 0, atol=1e-6)


def _calibrate(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("repro")), "calibrate", *options]
    environment = {**os.environ, "REPRO_HOME": str(home)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_command_writes_what_a_log_says(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{gpu: v100-sxm2-32gb, gpus_per_node: 4, nic: 4x100, vocabulary: 50257}")
    result = _calibrate(tmp_path, "--training-log", str(_LOG), "--job", str(job))
    assert result.returncode == 0, result.stderr
    # A single run is left out of no fit.
    assert result.stdout.splitlines()[-1].split()[-1] == "NaN"
    text = (tmp_path / "params" / "fused.yaml").read_text(encoding="utf-8")
    assert "volta bf16: " in text and "v100-sxm2-32gb" in text


@pytest.mark.parametrize(
    ("options", "symptom"),
    [
        (("--job", "job.yaml"), "--job job.yaml without --training-log"),
        (("--training-log", str(_LOG), "--ranks", "8"), "--ranks or --nodes without --log"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    tmp_path: Path, options: tuple[str, ...], symptom: str
) -> None:
    result = _calibrate(tmp_path, *options)
    assert result.returncode == 1 and symptom in result.stderr


def test_a_log_that_cannot_be_predicted_is_one_line(tmp_path: Path) -> None:
    result = _calibrate(tmp_path, "--training-log", str(_LOG))
    assert result.returncode == 1 and not (tmp_path / "params").exists()
    (line,) = result.stderr.splitlines()
    assert "run 1: not stated by the log; give --gpu NAME or --cluster NAME" in line


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = _calibrate(tmp_path, "--training-log", str(tmp_path / "gone.log"))
    assert result.returncode == 1 and f"{tmp_path}/gone.log: no such file; fix: " in result.stderr
