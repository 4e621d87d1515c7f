"""The two timelines of a replay, and GPU iterations that were predicted with them."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.predict.operators.gpu_replay import (
    fit_launch_s,
    gpu_calls,
    gpu_curves,
    gpu_iteration_errors,
    gpu_iterations,
    gpu_operator_errors,
    timelines_s,
)
from repro.results.measured import by_gpu, read_all_kept, read_kept

_CALLS = 50
_ONES = np.ones(_CALLS)


def calls_of(gpu_s: np.ndarray, waits: np.ndarray | bool = False) -> pd.DataFrame:
    return pd.DataFrame({"launches": 1.0, "gpu_s": gpu_s, "waits": waits})


@pytest.fixture(scope="module")
def measured() -> xr.Dataset:
    return read_kept("gpu_iterations", "h100-sxm-80gb")


def test_a_slow_host_is_what_takes_long() -> None:
    host, gpu = timelines_s(calls_of(0.3 * _ONES), _ONES)
    # All but the last call are done while the host launches the next one.
    assert (host, gpu) == (_CALLS, _CALLS + 0.3)


def test_a_slow_gpu_is_what_takes_long() -> None:
    host, gpu = timelines_s(calls_of(7 * _ONES), _ONES)
    # It waits for the first launch alone.
    assert (host, gpu) == (_CALLS, 1 + 7 * _CALLS)


def test_a_host_that_waits_for_each_call_takes_both() -> None:
    waits = np.tile([False, True], _CALLS)
    works = np.tile([1.0, 0.0], _CALLS)
    host, gpu = timelines_s(calls_of(7 * works, waits), works)
    assert host == gpu == 8 * _CALLS


def test_parts_of_an_iteration_may_be_bound_differently() -> None:
    works = np.r_[0.1 * _ONES, 7 * _ONES]
    host, gpu = timelines_s(calls_of(works), 1.0)
    assert host == 2 * _CALLS and gpu == pytest.approx(_CALLS + 1 + 7 * _CALLS)


def test_the_hosts_time_is_what_makes_up_the_measured_one() -> None:
    calls = calls_of(1e-5 * _ONES).assign(launches=2.0)
    assert fit_launch_s(calls, 0.02 + 1e-5) == pytest.approx(0.02 / (2 * _CALLS), rel=1e-5)
    # The GPU alone takes that long.
    assert fit_launch_s(calls, 1e-5 * _CALLS) == 0.0


def test_an_operator_with_a_size_that_could_not_be_measured_has_no_curve(
    measured: xr.Dataset,
) -> None:
    names = measured["operator"].values[measured["benchmark_operator"].values]
    at = np.flatnonzero(names == "product nn bf16")
    short = measured.drop_isel(benchmark=at[:1])
    assert gpu_curves(measured).keys() - gpu_curves(short).keys() == {"product nn bf16"}
    calls, fewer = gpu_calls(measured), gpu_calls(short)
    lost = calls.known & ~fewer.known
    assert set(calls.operator[lost]) == {"product nn bf16"}
    # It takes what the shortest call of all does.
    shortest_s = measured["benchmark_time_s"].median("repeat").min().item()
    np.testing.assert_allclose(fewer.gpu_s[lost], shortest_s * fewer.launches[lost])


def test_iterations_that_a_gpu_decides_are_met() -> None:
    found = by_gpu(read_all_kept("gpu_iterations"), gpu_iterations)
    largest_pct = gpu_iteration_errors(found).largest_pct.xs("gpu", level="longer")
    assert len(largest_pct) == 4
    assert (largest_pct.xs("transformer", level="kind") < 2).all() and (largest_pct < 7.5).all()
    assert (found.known_pct > 97).all()
    # Kernels, with nothing of the host. Short ones of small iterations begin sooner in a stream.
    ratios = found.gpu_ms / found.traced_ms
    assert (np.abs(ratios[found.longer == "gpu"] - 1) < 0.12).all()
    assert (np.abs(ratios - 1) < 0.17).all()
    totals = found.groupby("gpu")[["gpu_ms", "traced_ms"]].sum()
    assert (np.abs(totals.gpu_ms / totals.traced_ms - 1) < 0.065).all()


def test_operators_add_up_to_iterations(measured: xr.Dataset) -> None:
    operators, found = gpu_operator_errors(measured), gpu_iterations(measured)
    for name, column in (("traced_ms", "traced_ms"), ("predicted_ms", "gpu_ms")):
        assert operators[name].sum() == pytest.approx(found[column].sum())
