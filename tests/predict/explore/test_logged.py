"""`repro log`: a training log beside the prediction of the same job."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repro.cli import app
from repro.errors import ReproError
from repro.logs.reading import read_text
from repro.logs.training.reading import read_training_log
from repro.paths import PUBLISHED, ROOT
from repro.predict.explore.jobs.logged import judge, log_json, measured_parts, predicted_parts
from repro.results.store import read_dataset

_GPT2 = PUBLISHED / "logs" / "megatron_gpt2_32_v100.txt"
_LLAMA = ROOT / "tests" / "logs" / "training" / "nemo2_llama3_8b.txt"
_NANOGPT = ROOT / "tests" / "logs" / "training" / "nanogpt_8_a100.txt"
_V100 = ("--gpu", "v100-sxm2-16gb", "--gpus-per-node", "4", "--nic", "4x100")


def test_json_has_the_documented_fields() -> None:
    log = read_training_log(read_text(_LLAMA))
    report = log_json(log, judge(log, {"model": "llama3.1-8b", "gpu": "b200-sxm-180gb"}))
    assert json.loads(json.dumps(report)) == report
    assert report["tool"] == "NeMo"
    (run,) = report["runs"]
    assert run["iteration_time_s"]["median"] == pytest.approx(6.07, rel=0.005)
    assert run["gpus"] == 8
    # 128 sequences of 8192 tokens on 8 GPUs.
    assert run["tokens_per_s_per_gpu"] == pytest.approx(128 * 8192 / 6.07 / 8, rel=0.005)
    expected = run["expected"]["iteration_time_s"]
    assert expected["low"] < expected["expected"] < expected["high"]
    assert run["verdict"] == "as_expected"
    assert sum(run["expected"]["phases_s"].values()) == pytest.approx(expected["expected"])


def test_parts_of_measured_and_predicted_iterations_are_the_same() -> None:
    log = read_training_log(read_text(_GPT2))
    (one,) = judge(
        log, {"gpu": "v100-sxm2-16gb", "gpus_per_node": 4, "nic": "4x100", "vocabulary": 50257}
    )
    assert one.measured is not None
    measured, predicted = measured_parts(one.run), predicted_parts(one.measured.estimate)
    assert measured.keys() == predicted.keys()
    assert sum(predicted.values()) == pytest.approx(one.measured.estimate.iteration_time_s)
    # 1F1B with 4 micro batches on 8 stages: 7 of 11 slots are idle.
    share = predicted["pipeline"] / (predicted["pipeline"] + predicted["forward and backward"])
    assert share == pytest.approx(7 / 11, rel=0.05)
    assert measured["pipeline"] / one.measured.time_s == pytest.approx(7 / 11, rel=0.1)


def test_a_slow_run_has_status_3_and_its_dataset_is_written(tmp_path: Path) -> None:
    output = tmp_path / "runs.nc"
    arguments = ["log", str(_GPT2), *_V100, "--vocab-size", "50257", "--output", str(output)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3
    assert "20 of 228 lines are iterations" in result.output
    assert "18 steady, 1 warm-up, 1 evaluation" in result.output
    assert read_dataset(output).sizes["iteration"] == 20


def test_what_a_log_omits_is_requested_and_not_guessed() -> None:
    log = read_training_log(read_text(_LLAMA))
    (one,) = judge(log, {})
    assert "--model NAME" in one.missing
    assert one.verdict == ""
    nanogpt = read_training_log(read_text(_NANOGPT))
    given = {"model": "llama3.1-8b", "gpu": "a100-sxm-40gb"}
    (one,) = judge(nanogpt, given)
    assert one.missing == "tokens of an iteration are not stated; give --global-batch N, --seq N"
    (one,) = judge(nanogpt, {**given, "global_batch": 64, "seq": 1024})
    assert one.missing == ""


def test_impossible_options_are_errors() -> None:
    log = read_training_log(read_text(_LLAMA))
    with pytest.raises(ReproError, match="tp 3"):
        judge(log, {"model": "llama3.1-8b", "gpu": "b200-sxm-180gb", "tp": 3})
