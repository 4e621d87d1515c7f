"""Replays of traces: sums of operators and launches, and two timelines on GPUs."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from made_up_operators import CALLS, ELEMENTS, HOST_S, add_s, made_up_operators

from repro.logs.operator_trace import TracedCall
from repro.predict.operators.curves import Curve, operator_curves
from repro.predict.operators.trace_replay import (
    fit_launch_s,
    geometric_mean_pct,
    iteration_errors,
    iterations,
    operator_times,
    predicted_calls,
    replay_trace,
    timelines_s,
)
from repro.predict.workload import Array
from repro.results.measured import by_gpu, read_all_kept, read_kept

_CALLS = 50
_ONES = np.ones(_CALLS)


def calls_of(gpu_s: np.ndarray, waits: np.ndarray | bool = False) -> pd.DataFrame:
    return pd.DataFrame({"launches": 1.0, "seconds": gpu_s, "waits": waits})


@pytest.fixture(scope="module")
def measured() -> xr.Dataset:
    return read_kept("gpu_iterations", "h100-sxm-80gb")


def test_curves_are_exact_where_measured_and_where_each_size_adds_as_much() -> None:
    sides = np.array([10.0, 40.0, 160.0])

    def seconds(lookups: Array, rows: Array) -> Array:
        """A call, and lookups, of which caches hold more where the table has fewer rows."""
        return 1e-5 + 1e-8 * lookups * (1 + np.log(rows))

    curve = Curve((sides, sides), seconds(sides[:, None], sides[None, :]), in_caches=1)
    asked = np.array([[10.0, 40.0], [20.0, 100.0], [320.0, 50.0], [15.0, 640.0]])
    assert curve.seconds(asked) == pytest.approx(seconds(*asked.T))
    # What is smaller than the smallest takes as long as that.
    smaller, smallest = np.array([[[2.0, 40.0]], [[10.0, 40.0]]])
    assert curve.seconds(smaller) == pytest.approx(seconds(*smallest.T))


def test_nothing_takes_less_than_the_shortest() -> None:
    # What a byte of weights takes falls with the batch.
    falling = Curve((np.array([1.0, 4.0]),), np.array([3e-9, 1e-9]))
    assert falling.seconds(np.array([[2.0], [100.0]])) == pytest.approx([7e-9 / 3, 1e-9])


def test_an_axis_of_one_size_is_no_axis() -> None:
    sides = np.array([10.0, 40.0])
    curve = Curve((np.array([7.0]), sides), 1e-9 * sides[None, :])
    assert curve.seconds(np.array([[3.0, 20.0], [9.0, 40.0]])) == pytest.approx([2e-8, 4e-8])


def test_a_cpu_computes_and_launches_in_turn() -> None:
    found = iterations(made_up_operators()).set_index("model")
    assert found.error_pct.abs().max() < 0.1
    for model, elements in ELEMENTS.items():
        assert found.loc[model].host_ms == pytest.approx(1e3 * CALLS * HOST_S, rel=1e-3)
        assert found.loc[model].device_ms == pytest.approx(1e3 * CALLS * add_s(elements), rel=1e-3)
    assert list(found.longer) == ["device", "device"]


def test_no_time_of_a_judged_iteration_is_used() -> None:
    as_they_are, longer = (iterations(made_up_operators(by)) for by in (1.0, 1.25))
    assert np.array_equal(as_they_are.predicted_ms, longer.predicted_ms)
    assert longer.error_pct.to_numpy() == pytest.approx(-20.0, abs=0.1)
    assert geometric_mean_pct(longer.error_pct) == pytest.approx(20.0, abs=0.1)


def test_of_a_trace_only_measured_operators_are_predicted() -> None:
    calls = [
        *4 * [TracedCall("forward", "add/2", (1000,), ("fp32",), 1, 0.05)],
        TracedCall("forward", "add/2", (1000,), ("bf16",), 1, 0.1),
        TracedCall("forward", "unheard_of", (), (), 1, 0.75),
    ]
    found = replay_trace(calls, made_up_operators())
    assert list(found.index) == ["unheard_of", "add/2 fp32", "add/2 bf16"]
    assert list(found.known) == [False, True, False]
    assert found.predicted_ms["add/2 fp32"] == pytest.approx(4e3 * add_s(1000), rel=1e-3)
    assert found.predicted_ms.isna().tolist() == [True, False, True]


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
    assert operator_curves(measured).keys() - operator_curves(short).keys() == {"product nn bf16"}
    calls, fewer = predicted_calls(measured), predicted_calls(short)
    lost = calls.known & ~fewer.known
    assert set(calls.operator[lost]) == {"product nn bf16"}
    # It takes what the shortest call of all does.
    shortest_s = measured["benchmark_time_s"].median("repeat").min().item()
    np.testing.assert_allclose(fewer.seconds[lost], shortest_s * fewer.launches[lost])


def test_iterations_that_a_gpu_decides_are_met() -> None:
    found = by_gpu(read_all_kept("gpu_iterations"), iterations)
    largest_pct = iteration_errors(found).largest_pct.xs("device", level="longer")
    assert len(largest_pct) == 4
    assert (largest_pct.xs("transformer", level="kind") < 2).all() and (largest_pct < 7.5).all()
    assert (found.known_pct > 97).all()
    # Kernels, with nothing of the host. Short ones of small iterations begin sooner in a stream.
    ratios = found.device_ms / found.traced_ms
    assert (np.abs(ratios[found.longer == "device"] - 1) < 0.12).all()
    assert (np.abs(ratios - 1) < 0.17).all()
    totals = found.groupby("gpu")[["device_ms", "traced_ms"]].sum()
    assert (np.abs(totals.device_ms / totals.traced_ms - 1) < 0.065).all()


def test_operators_add_up_to_iterations(measured: xr.Dataset) -> None:
    operators, found = operator_times(measured), iterations(measured)
    for name, column in (("traced_ms", "traced_ms"), ("predicted_ms", "device_ms")):
        assert operators[name].sum() == pytest.approx(found[column].sum())
