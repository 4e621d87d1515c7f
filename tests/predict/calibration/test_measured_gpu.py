"""What an H200 took, beside what is predicted of it from other GPUs: nothing is fitted to these."""

import json

import numpy as np
import pytest
import xarray as xr

from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.calibration.measured_gpu import (
    decoding_errors,
    device_of,
    memory_rates,
    operator_errors,
    operator_summary,
)
from repro.results.measured import read_kept


@pytest.fixture(scope="module")
def operators() -> xr.Dataset:
    return read_kept("gpu_operators")


def test_a_gpu_is_known_by_its_name(operators: xr.Dataset) -> None:
    assert device_of(operators) == gpu("h200-sxm-141gb")
    ran_on = json.dumps([{"device": "Radeon VII"}])
    with pytest.raises(ReproError, match=r"Radeon VII, which params/gpus.yaml has not"):
        device_of(operators.assign_attrs(ran_on=ran_on))


def test_products_go_over_from_another_gpu(operators: xr.Dataset) -> None:
    found = operator_summary(operator_errors(operators))
    assert found.loc[("gemm", "bf16"), "mape_pct"] < 12
    assert found.loc[("gemm", "fp8"), "mape_pct"] < 13
    assert (found.loc["gemm"].long_mape_pct < 10).all()


def test_what_has_no_time_has_no_row(operators: xr.Dataset) -> None:
    errors = operator_errors(operators)
    timed = operators["time_s"].notnull().all("repeat") & (operators["kind"] != "addition")
    assert len(errors) == int(timed.sum()) < int((operators["kind"] != "addition").sum())
    assert np.isfinite(errors.error_pct).all()


def test_additions_stay_below_the_memorys_rate(operators: xr.Dataset) -> None:
    rates = memory_rates(operators)
    device = device_of(operators)
    assert rates.gbytes_per_s.is_monotonic_increasing
    assert 0.85 * device.memory_gbytes_per_s < rates.gbytes_per_s.max() < device.memory_gbytes_per_s


def test_tokens_and_prompts_of_a_decoder_are_met_within_ten_percent() -> None:
    errors = decoding_errors(read_kept("gpu_decoding"))
    assert len(errors) == 12 + 8
    assert errors.error_pct.abs().max() < 10
    assert errors[errors.phase == "token"].error_pct.abs().mean() < 5
    # The host launches slower than the GPU computes, but for large passes.
    assert (errors.host_ms.dropna() > errors.measured_ms[errors.host_ms.notna()]).all()
