"""What GPUs took, beside what is predicted of them from published operators: nothing is fitted."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.calibration.measured_gpu import (
    decoding_errors,
    decoding_parts,
    decoding_summary,
    memory_rates,
    operator_errors,
    operator_summary,
    sustained_rates,
)
from repro.results.measured import by_gpu, measured_on, read_all_kept

_GPUS = ["h100-sxm-80gb", "h200-sxm-141gb"]


@pytest.fixture(scope="module")
def operators() -> dict[str, xr.Dataset]:
    return read_all_kept("gpu_operators")


@pytest.fixture(scope="module")
def errors(operators: dict[str, xr.Dataset]) -> pd.DataFrame:
    return by_gpu(operators, operator_errors)


def test_a_gpu_is_known_by_its_name(operators: dict[str, xr.Dataset]) -> None:
    assert [measured_on(one) for one in operators.values()] == _GPUS
    other = operators[_GPUS[0]].assign_attrs(ran_on=json.dumps([{"device": "Radeon VII"}]))
    with pytest.raises(ReproError, match="unknown GPU 'Radeon VII'"):
        operator_errors(other)


def test_products_are_met_and_go_over_to_another_gpu(errors: pd.DataFrame) -> None:
    found = operator_summary(errors)
    for name, mean, long in ((_GPUS[0], 10, 6), (_GPUS[1], 12, 10)):
        products = found.loc[(name, "gemm")]
        assert (products.mape_pct < mean).all() and (products.long_mape_pct < long).all()


def test_what_has_no_time_has_no_row(
    operators: dict[str, xr.Dataset], errors: pd.DataFrame
) -> None:
    for name, measured in operators.items():
        timed = measured["time_s"].notnull().all("repeat") & (measured["kind"] != "addition")
        rows = len(errors.loc[name])
        assert rows == int(timed.sum()) < int((measured["kind"] != "addition").sum())
    assert np.isfinite(errors.error_pct).all()


def test_additions_stay_below_the_memorys_rate(operators: dict[str, xr.Dataset]) -> None:
    for name, measured in operators.items():
        rates, peak = memory_rates(measured).gbytes_per_s, gpu(name).memory_gbytes_per_s
        assert rates.is_monotonic_increasing
        assert 0.85 * peak < rates.max() < peak


@pytest.fixture(scope="module")
def passes() -> pd.DataFrame:
    return by_gpu(read_all_kept("gpu_decoding"), decoding_errors)


def test_tokens_of_a_decoder_are_met(passes: pd.DataFrame) -> None:
    found = decoding_summary(passes)
    # Of 18 of each model and precision, those whose caches fit.
    tokens = found.xs("token", level="phase").passes
    assert tokens.xs(_GPUS[0]).to_list() == [13, 15, 12, 13]
    assert tokens.xs(_GPUS[1]).to_list() == [15, 15, 13, 13]
    assert (found.xs("prompt", level="phase").passes == 8).all()
    mean = found.mean_pct.xs("token", level="phase").unstack("model")
    assert (mean["llama3.1-8b"] < 4).all() and (mean["llama2-7b"] < 10).all()
    # In half precision, prompts too.
    half = passes[(passes.model == "llama3.1-8b") & (passes.weights == "bf16")]
    half = half[half.batch <= 64]
    assert half.error_pct.abs().max() < 10
    assert half[half.phase == "token"].error_pct.abs().mean() < 5
    # Where products of many rows, which were alike, and torch's element-wise kernels do not decide.
    few = passes[(passes.phase == "token") & (passes.batch <= 16)]
    assert few.error_pct.abs().max() < 13 and few.error_pct.abs().mean() < 5


def test_the_host_is_slower_than_graphs(passes: pd.DataFrame) -> None:
    launched = passes[passes.host_ms.notna() & (passes.measured_ms < 10)]
    # Large passes take as long either way.
    every = passes[passes.host_ms.notna()]
    assert (every.host_ms > 0.95 * every.measured_ms).all()
    assert len(launched) > 70 and (launched.host_ms > 1.2 * launched.measured_ms).all()


def test_fp8_halves_what_weights_take_of_a_token(passes: pd.DataFrame) -> None:
    alone = passes[(passes.phase == "token") & (passes.batch == 1) & (passes.tokens == 128)]
    taken = alone.reset_index("gpu").set_index(["gpu", "model", "weights"])
    for column in ("predicted_ms", "measured_ms"):
        saved = -taken[column].unstack("weights").diff(axis=1)["fp8"] / 1e3
        for (name, model), seconds in saved.items():
            shape = open_model(str(model)).shape
            # All but the vocabulary's, which stay in bf16; at the memory's full rate.
            weights = shape.count(0) - 2 * shape.vocab * shape.hidden
            assert 0.85 < seconds / (weights / gpu(str(name)).memory_gbytes_per_s / 1e9) < 1.3


def test_parts_of_a_pass_are_all_of_it(passes: pd.DataFrame) -> None:
    parts = by_gpu(read_all_kept("gpu_decoding_parts"), decoding_parts)
    key = ["gpu", "model", "weights", "phase", "batch", "tokens"]
    sums = parts.groupby(key)[["measured_ms", "predicted_ms"]].sum()
    both = passes.groupby(key)[["measured_ms", "predicted_ms"]].sum().join(sums, rsuffix="_parts")
    assert len(both) == len(passes) and both.notna().all(axis=None)
    np.testing.assert_allclose(both.predicted_ms_parts, both.predicted_ms)
    # A graph has short gaps between its kernels; a trace of another run may find them longer.
    ratio = both.measured_ms_parts / both.measured_ms
    assert ratio.between(0.84, 1.06).all()
    assert (parts[parts.weights == "bf16"].part != "casts").all()
    tokens = parts[(parts.phase == "token") & (parts.batch <= 64) & (parts.part == "products")]
    assert (tokens.predicted_ms / tokens.measured_ms).between(0.95, 1.12).all()


def test_power_leaves_what_was_fitted_to_training() -> None:
    found = by_gpu(read_all_kept("gpu_sustained"), sustained_rates)
    for name, rates in found.groupby("gpu"):
        for variant, of_one in rates.groupby("variant"):
            # Whatever the shape.
            assert np.ptp(of_one.kept) < 0.02
            assert of_one.kept.mean() == pytest.approx(of_one.fitted.iloc[0], abs=0.05)
            peak = {"bf16": gpu(str(name)).peak_flops, "fp8": gpu(str(name)).fp8_flops}
            assert (of_one.burst_tflops < (peak[str(variant)] or 0) / 1e12).all()
        assert rates.power_w.between(650, 710).all()
