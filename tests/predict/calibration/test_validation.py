"""Scores on measurements with known answers, and on the published ones."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from examples import CALIBRATED, measurements
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from repro.cli import app
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.calibration.validation import (
    best_constant_mape_pct,
    predict_runs,
    validate,
)
from repro.predict.tables.reading import read_rows
from repro.predict.tables.training import UNFUSED, software

pytestmark = pytest.mark.slow

_KEYS = {
    *("set", "n", "mape_pct", "median_pct", "p90_pct", "max_pct", "bias_pct"),
    *("rank_correlation", "coverage_90_pct", "baseline_mape_pct"),
}


@pytest.fixture
def exact(tmp_path: Path) -> Path:
    """A file that the model made up itself."""
    path = tmp_path / "rows.csv"
    measurements(CALIBRATED).to_csv(path, index=False)
    return path


def test_the_models_own_times_are_met(exact: Path) -> None:
    scores = validate(exact)
    assert list(scores.index) == ["hidden_1024", "hidden_2048"]
    for score in scores.itertuples():
        assert score.n == 16
        for error in (score.mape_pct, score.median_pct, score.p90_pct, score.max_pct):
            assert error == pytest.approx(0, abs=1e-9)
        assert score.bias_pct == pytest.approx(0, abs=1e-9)
        assert score.rank_correlation == pytest.approx(1)
        assert score.coverage_90_pct == 100
        assert score.baseline_mape_pct > 10


def test_errors_are_shares_of_what_was_measured(tmp_path: Path) -> None:
    rows = measurements(CALIBRATED).head(4)
    # Predictions are 2 % too long, 60 % too short, right, and twice as long.
    rows["iteration_time_s"] /= [1.02, 0.4, 1.0, 2.0]
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    (score,) = validate(path).itertuples()
    assert score.mape_pct == pytest.approx(162 / 4)
    assert score.median_pct == pytest.approx(31)
    assert score.max_pct == pytest.approx(100)
    assert score.bias_pct == pytest.approx(42 / 4)
    assert score.coverage_90_pct == 50


def test_one_row_has_no_rank(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    measurements(CALIBRATED).head(1).to_csv(path, index=False)
    (score,) = validate(path).itertuples()
    assert np.isnan(score.rank_correlation)
    assert score.baseline_mape_pct == 0


def test_json_has_exactly_these_keys(exact: Path) -> None:
    result = CliRunner().invoke(app, ["validate", str(exact), "--json"])
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert [set(score) for score in printed] == [_KEYS, _KEYS]
    assert [score["n"] for score in printed] == [16, 16]


def test_the_table_has_a_line_per_set(exact: Path) -> None:
    lines = CliRunner().invoke(app, ["validate", str(exact)]).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["hidden_1024", "hidden_2048"]


_WORK = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12)


@given(_WORK)
def test_the_best_constant_is_the_best_of_a_scan(work: list[float]) -> None:
    values = np.array(work)
    rates = np.geomspace(0.4, 2.5, 4001)
    scan = 100 * np.abs(values / rates[:, None] - 1).mean(axis=1)
    best = best_constant_mape_pct(values)
    assert best <= scan.min() + 1e-9
    # Neighbours of the scan differ by 0.05 %, and errors by at most max(work) / min(rate) of it.
    assert best == pytest.approx(scan.min(), abs=0.25)


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    """Scores of all published training runs, by set."""
    files = ("training_a100_vtrain.csv", "training_a100_tables.csv")
    return pd.concat([validate(PUBLISHED / name) for name in files])


@pytest.fixture(scope="module")
def published_by_gpus() -> pd.DataFrame:
    """Scores of the runs that the calibration is made of, by number of GPUs."""
    return validate(PUBLISHED / "training_a100_vtrain.csv", by=["gpus"])


@pytest.mark.parametrize(
    ("name", "rows", "bound_pct"),
    [("vtrain_single", 464, 6.0), ("vtrain_multi", 28, 8.0), ("korthikanti_table5", 8, 3.0)],
)
def test_published_runs_are_met(
    published: pd.DataFrame, name: str, rows: int, bound_pct: float
) -> None:
    score = published.loc[name]
    assert score.n == rows
    assert score.mape_pct < bound_pct
    assert score.mape_pct < score.baseline_mape_pct
    assert 85 <= score.coverage_90_pct <= 100


def test_collectives_are_cross_validated_beside_lines_by_level() -> None:
    between, inside = validate(PUBLISHED / "nccl_bigred200.csv").itertuples()
    assert between.Index.endswith("all_reduce, several nodes") and between.n == 12
    assert inside.Index.endswith("all_reduce, one node") and inside.n == 12
    for score in (between, inside):
        # What a fit has not seen is met less well than what it has.
        assert score.mape_pct < score.cross_validated_pct < 10
    assert between.cross_validated_pct < between.line_mape_pct


def test_a_network_without_a_rate_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame(
        {
            "gpu": ["A100", "X1"],
            "ranks": [8, 8],
            "nodes": [1, 2],
            "network": ["NVLink", "carrier pigeons"],
            "collective": "all_reduce",
            "size_bytes": [2**27, 2**27],
            "time_us": [1000.0, 1e6],
        }
    )
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    (score,) = validate(path).itertuples()
    assert score.Index == "A100, NVLink, all_reduce" and score.n == 1
    assert "carrier pigeons" in capsys.readouterr().err
    rows.tail(1).to_csv(path, index=False)
    with pytest.raises(ReproError, match="no network of the file"):
        validate(path)


@pytest.mark.parametrize(
    ("file", "changed", "reason"),
    [
        ("training_modern.csv", {"gpu": "h900"}, "unknown GPU 'h900'; choose from: a100-sxm"),
        ("training_a100_tables.csv", {"gpu": "P100"}, "unknown GPU 'P100'; choose from: a100-sxm"),
        (
            "operators/gemm_h100_sxm.csv",
            {"gpu": "h900"},
            "unknown GPU 'h900'; choose from: a100-sxm",
        ),
        (
            "inference_a100_fastertransformer.csv",
            {"gpu": "P100"},
            "unknown GPU 'P100'; choose from: a100-sxm",
        ),
        (
            "inference_a100_fastertransformer.csv",
            {"dtype": "int3"},
            "unknown precision 'int3'; choose from: bf16, fp8, ",
        ),
        (
            "inference_a100_fastertransformer.csv",
            {"dtype": "fp8"},
            "precision 'fp8': A100-SXM-80GB has no units for it; take bf16",
        ),
        (
            "inference_a100_fastertransformer.csv",
            {"stack": "llama.cpp"},
            "unknown serving software 'llama.cpp'; choose from: ",
        ),
        (
            "inference_a100_fastertransformer.csv",
            {"model": "abacus-9", "layers": np.nan},
            "unknown model 'abacus-9'; choose from: tinyllama-1.1b, ",
        ),
    ],
)
def test_rows_that_are_not_understood_are_named_and_the_others_judged(
    file: str,
    changed: dict[str, object],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = pd.read_csv(PUBLISHED / file).head(8)
    path = tmp_path / "rows.csv"
    rows.drop(index=[1, 3, 4]).to_csv(path, index=False)
    others = validate(path, by=["gpu"])
    assert others.n.sum() == 5 and not capsys.readouterr().err
    for name, value in changed.items():
        rows[name] = (rows[name] if name in rows else pd.Series(np.nan, rows.index)).astype(object)
        rows.loc[[1, 3, 4], name] = value
    rows.to_csv(path, index=False)
    pd.testing.assert_frame_equal(validate(path, by=["gpu"]), others)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: {path}: lines 3, 5-6: {reason}")
    rows.loc[[1, 3, 4]].to_csv(path, index=False)
    with pytest.raises(ReproError) as raised:
        validate(path)
    assert str(raised.value).startswith(f"{path}: {reason}")


def test_only_validation_leaves_rows_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = pd.read_csv(PUBLISHED / "training_modern.csv").head(3)
    rows.loc[1, "gpu"] = "h900"
    rows.to_csv(path, index=False)
    with pytest.raises(ReproError, match=r"rows\.csv: unknown GPU 'h900'; choose from: "):
        read_rows(path)


def test_what_a_table_does_not_say_widens_its_intervals() -> None:
    rows = pd.read_csv(PUBLISHED / "training_modern.csv").head(20)
    said, unsaid = (predict_runs(table) for table in (rows, rows.drop(columns="overlap")))
    # How uneven experts are is not said either, and costs less where exchanges overlap.
    experts = rows.experts.notna().to_numpy()
    parallel = (rows.tp > 1).to_numpy() & ~experts
    assert (unsaid.half_width >= said.half_width)[~experts].all()
    even = predict_runs(rows.assign(expert_imbalance=1.0))
    narrower = even.half_width < said.half_width
    # Where the host launches for longer than experts compute, it changes nothing.
    assert narrower[experts].mean() > 0.5 and not narrower[~experts].any()
    assert parallel.any() and (unsaid.half_width > said.half_width)[parallel].all()


def test_a_run_is_judged_by_the_model_of_its_software(tmp_path: Path) -> None:
    rows = pd.read_csv(PUBLISHED / "training_a100_tables.csv").head(3)
    newer = rows.assign(gpu="H100-SXM-80GB")
    assert (software(rows) == UNFUSED).all()
    assert (software(newer) == "megatron-core").all()
    path = tmp_path / "rows.csv"
    pd.concat([rows, newer]).to_csv(path, index=False)
    assert validate(path, by=["gpu"]).n.tolist() == [3, 3]
    with pytest.raises(ReproError, match="no column 'colour' to group by"):
        validate(path, by=["colour"])


def test_what_a_column_does_not_say_is_a_set_of_its_own() -> None:
    scores = validate(PUBLISHED / "training_modern.csv", by=["experts"])
    assert set(scores.index) >= {"unknown", "8.0", "128.0"}
    assert scores.n.sum() == 239


@pytest.mark.parametrize(
    ("gpus", "rows"), [(2, 92), (4, 165), (8, 207), (64, 3), (256, 4), (512, 21)]
)
def test_intervals_hold_at_every_size(
    published_by_gpus: pd.DataFrame, gpus: int, rows: int
) -> None:
    score = published_by_gpus.loc[str(gpus)]
    assert score.n == rows
    assert 85 <= score.coverage_90_pct <= (95 if gpus <= 8 else 100)
