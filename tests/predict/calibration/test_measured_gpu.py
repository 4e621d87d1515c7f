"""What GPUs took, beside what is predicted of them from published operators: nothing is fitted."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.calibration.measured_gpu import (
    decoding_errors,
    decoding_summary,
    memory_rates,
    operator_errors,
    operator_summary,
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
    with pytest.raises(ReproError, match=r"Radeon VII, which params/gpus.yaml has not"):
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


def test_tokens_and_prompts_of_a_decoder_are_met_within_ten_percent() -> None:
    found = by_gpu(read_all_kept("gpu_decoding"), decoding_errors)
    # The caches of 64 sequences of 8,192 tokens do not fit into 80 GB.
    assert decoding_summary(found).passes.to_dict() == {
        **{(_GPUS[0], "prompt"): 8, (_GPUS[0], "token"): 11},
        **{(_GPUS[1], "prompt"): 8, (_GPUS[1], "token"): 12},
    }
    assert found.error_pct.abs().max() < 10
    assert (decoding_summary(found).mean_pct.xs("token", level="phase") < 5).all()
    # The host launches slower than the GPU computes, but for large passes.
    assert (found.host_ms.dropna() > found.measured_ms[found.host_ms.notna()]).all()
