"""Iterations predicted by replaying their traces on two timelines: the host's and the device's.

The host launches one call after another and goes on; a GPU executes them in that order. A call
begins when it was launched and the one before it has ended. At a synchronisation the host waits
until the GPU is idle; a CPU is its own host, which waits for each call. The longer timeline is the
iteration (Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on
Multi-GPU Platforms", 2024).

Operator times are interpolated between sizes that were measured alone
(`repro.predict.operators.curves.Curve`); a call without a microbenchmark takes the shortest of all
measured times. The time of a launch is constant within the forward pass, the backward pass and the
rest. It comes from an iteration of the same model on the fewest samples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import brentq

from repro.logs.operator_trace import PARTS, WAIT, TracedCall
from repro.predict.operators.curves import SIZES, calls_with_curves, operator_curves, sizes_of
from repro.predict.workload import Array

# Whether an iteration is on the fewest samples, which determine the host's time.
FEWER, JUDGED = "fewer samples", "judged"
_LONGEST_LAUNCH_S = 1.0
_CPU = "testbed"


def predicted_calls(measured: xr.Dataset) -> pd.DataFrame:
    """Predict every case's calls in order.

    Returns
    -------
    DataFrame
        case, part, operator, launches; busy_s, traced; `seconds`, predicted; `known`, whether the
        operator has a microbenchmark; `waits`, whether the host waits before it.
    """
    table = sizes_of(measured, "call").assign(
        case=measured["call_case"].values,
        part=np.array(PARTS)[measured["call_part"].values],
        operator=measured["operator"].values[measured["call_operator"].values],
        launches=measured["call_launches"].values.astype(float),
        busy_s=measured["call_busy_s"].values.astype(float),
    )
    waits = (table.operator == WAIT) | (measured.attrs["source"] == _CPU)
    return _with_seconds(table, measured).assign(waits=waits)


def _with_seconds(table: pd.DataFrame, measured: xr.Dataset) -> pd.DataFrame:
    """Add the predicted `seconds` of calls, and whether their operators are `known`."""
    curves = operator_curves(measured)
    shortest_s = float(measured["benchmark_time_s"].median("repeat").min())
    seconds = shortest_s * table.launches.to_numpy(dtype=float)
    for operator, at, sizes in calls_with_curves(table, curves):
        seconds[at] = curves[operator].seconds(sizes)
    return table.assign(seconds=seconds, known=table.operator.isin(list(curves)))


def timelines_s(calls: pd.DataFrame, launch_s: Array | float) -> tuple[float, float]:
    """Return the end of the host's timeline and of the device's, in seconds.

    `calls` are in order, with their `launches`, `seconds` and `waits`; `launch_s` is the host's
    time per launch.
    """
    host = device = 0.0
    launching_s = calls.launches.to_numpy() * launch_s
    for host_s, device_s, waits in zip(launching_s, calls.seconds, calls.waits, strict=True):
        if waits:
            host = max(host, device)
        host += host_s
        if device_s:
            device = max(device, host) + device_s
    return host, device


def fit_launch_s(calls: pd.DataFrame, measured_s: float) -> float:
    """Return the host's time per launch for which calls take as long as measured.

    It is 0 if the device alone takes longer.
    """

    def excess_s(launch_s: float) -> float:
        return max(timelines_s(calls, launch_s)) - measured_s

    if excess_s(0.0) >= 0:
        return 0.0
    return float(brentq(excess_s, 0.0, _LONGEST_LAUNCH_S, xtol=1e-9))


def _launch_s_by_part(calls: pd.DataFrame, case: xr.Dataset) -> dict[str, float]:
    """Fit the time per launch of each part; one for all where only the iteration was measured."""
    parts_s = case["part_time_s"].median("iteration")
    if parts_s.isnull().any():
        total_s = float(case["iteration_time_s"].median("iteration"))
        return dict.fromkeys(PARTS, fit_launch_s(calls, total_s))
    return {
        part: fit_launch_s(calls[calls.part == part], float(parts_s.sel(part=part)))
        for part in PARTS
    }


def iterations(measured: xr.Dataset) -> pd.DataFrame:
    """Compare predicted iterations with measured ones.

    Parameters
    ----------
    measured : Dataset
        By `repro.experiments.machine.iterations.iteration_dataset`.

    Returns
    -------
    DataFrame
        A row per judged case: model, samples, tables; measured_ms, the median of iterations;
        predicted_ms; host_ms and device_ms, the work of each alone; traced_ms, the device's work in
        the trace; known_pct, its fraction with a microbenchmark; `longer`, which of host and device
        has more work; and error_pct.
    """
    calls = predicted_calls(measured)
    cases = pd.DataFrame(
        {name: measured[f"case_{name}"].values for name in ("model", "samples", "tables", "role")}
    ).assign(measured_ms=1e3 * measured["iteration_time_s"].median("iteration").values)
    launch_s = {
        case["model"]: _launch_s_by_part(calls[calls.case == number], measured.isel(case=number))
        for number, case in cases[cases.role == FEWER].to_dict("index").items()
    }
    judged = cases[cases.role == JUDGED].drop(columns="role")
    rows = []
    for number, case in judged.to_dict("index").items():
        own = calls[calls.case == number]
        each_s = own.part.map(launch_s[case["model"]]).to_numpy()
        rows.append(
            {
                "predicted_ms": 1e3 * max(timelines_s(own, each_s)),
                "host_ms": 1e3 * float((own.launches * each_s).sum()),
                "device_ms": 1e3 * float(own.seconds.sum()),
                "traced_ms": 1e3 * float(own.busy_s.sum()),
                "known_pct": 100 * float(own.busy_s[own.known].sum() / own.busy_s.sum()),
            }
        )
    found = judged.reset_index(drop=True).join(pd.DataFrame(rows))
    found["longer"] = np.where(found.device_ms > found.host_ms, "device", "host")
    return found.assign(error_pct=100 * (found.predicted_ms / found.measured_ms - 1))


def operator_times(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the predicted and traced time of each operator in judged iterations.

    Returns
    -------
    DataFrame
        Indexed by operator with its precisions, the longest first: calls, traced_ms, predicted_ms
        and known.
    """
    calls = predicted_calls(measured)
    judged = measured["case_role"].values[calls.case] == JUDGED
    return _by_operator(calls[judged & (calls.operator != WAIT)])


def replay_trace(calls: Sequence[TracedCall], measured: xr.Dataset) -> pd.DataFrame:
    """Compare the predicted and traced time of each operator of a trace.

    Returns
    -------
    DataFrame
        As of `operator_times`; nothing is predicted of operators without a microbenchmark.
    """
    sizes = pd.DataFrame([call.sizes for call in calls]).reindex(columns=range(len(SIZES)))
    table = pd.DataFrame(sizes.to_numpy(dtype=float), columns=list(SIZES)).assign(
        operator=[" ".join((call.operator, *call.precisions)) for call in calls],
        launches=[call.launches for call in calls],
        busy_s=[call.busy_s for call in calls],
    )
    found = _by_operator(_with_seconds(table, measured))
    return found.assign(predicted_ms=found.predicted_ms.where(found.known))


def _by_operator(calls: pd.DataFrame) -> pd.DataFrame:
    found = calls.groupby("operator").agg(
        calls=("launches", "size"),
        traced_ms=("busy_s", "sum"),
        predicted_ms=("seconds", "sum"),
        known=("known", "first"),
    )
    found[["traced_ms", "predicted_ms"]] *= 1e3
    table: pd.DataFrame = found.sort_values("traced_ms", ascending=False)
    return table


def geometric_mean_pct(errors_pct: pd.Series) -> float:
    """Return the geometric mean of absolute errors."""
    return float(np.exp(np.log(errors_pct.abs()).mean()))


def iteration_errors(found: pd.DataFrame) -> pd.DataFrame:
    """Summarize errors of `iterations` of devices (`repro.results.measured.by_gpu`).

    Returns
    -------
    DataFrame
        Indexed by gpu, kind (transformer or dlrm) and `longer`: iterations; geometric_mean_pct and
        mean_pct of absolute errors; bias_pct and largest_pct.
    """
    by: list[Any] = ["gpu", model_kind(found), "longer"]
    errors = found.groupby(by).error_pct
    return pd.DataFrame(
        {
            "iterations": errors.size(),
            "geometric_mean_pct": errors.agg(geometric_mean_pct),
            "mean_pct": errors.agg(lambda own: own.abs().mean()),
            "bias_pct": errors.mean(),
            "largest_pct": errors.agg(lambda own: own.abs().max()),
        }
    )


def model_kind(found: pd.DataFrame) -> pd.Series:
    """Return the kind of model of each row of `iterations`: transformer or dlrm."""
    return found.model.where(found.model == "dlrm", "transformer").rename("kind")
