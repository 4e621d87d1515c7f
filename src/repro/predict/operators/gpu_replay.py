"""GPU iterations predicted by replaying their traces on two timelines: the host's and the GPU's.

The host launches one call after another and goes on; the GPU executes them in that order. A call
begins when it was launched and the one before it has ended. At a synchronisation the host waits
until the GPU is idle. The longer timeline is the iteration (Lin et al., "Towards Universal
Performance Modeling for Machine Learning Training on Multi-GPU Platforms", 2024).

GPU times are interpolated between sizes that were measured alone
(`repro.predict.operators.curves.Curve`); a call without a microbenchmark takes the shortest of all
measured times. The time of a launch is constant within the forward pass, the backward pass and the
rest. It comes from an iteration of the same model on the fewest samples.
"""

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import brentq

from repro.logs.gpu_trace import PARTS, WAIT
from repro.predict.operators.curves import Curve, calls_with_curves, curve_of, sizes_of
from repro.predict.operators.trace_replay import FEWER, JUDGED, summarize_errors
from repro.predict.workload import Array

_LONGEST_LAUNCH_S = 1.0


def gpu_curves(measured: xr.Dataset) -> dict[str, Curve]:
    """Return curves of operators by their name and precisions: medians over repeats.

    Operators with a size that could not be measured have no curve.
    """
    sizes = sizes_of(measured, "benchmark")
    table = sizes.assign(
        operator=measured["operator"].values[measured["benchmark_operator"].values],
        seconds=measured["benchmark_time_s"].median("repeat").values,
    )
    found = {}
    for operator, rows in table.groupby("operator"):
        own = rows[sizes.columns].dropna(axis="columns", how="all")
        if len(own) == own.nunique().prod():
            found[str(operator)] = curve_of(str(operator), own, rows.seconds.to_numpy())
    return found


def gpu_calls(measured: xr.Dataset) -> pd.DataFrame:
    """Predict every case's calls in order.

    Returns
    -------
    DataFrame
        case, part, operator, launches; busy_s, traced; `gpu_s`, predicted; `known`, whether the
        operator has a microbenchmark; `waits`, whether the host waits.
    """
    table = sizes_of(measured, "call").assign(
        case=measured["call_case"].values,
        part=np.array(PARTS)[measured["call_part"].values],
        operator=measured["operator"].values[measured["call_operator"].values],
        launches=measured["call_launches"].values.astype(float),
        busy_s=measured["call_busy_s"].values.astype(float),
    )
    curves = gpu_curves(measured)
    gpu_s = float(measured["benchmark_time_s"].median("repeat").min()) * table.launches.to_numpy()
    for operator, at, sizes in calls_with_curves(table, curves):
        gpu_s[at] = curves[operator].seconds(sizes)
    known = table.operator.isin(list(curves))
    return table.assign(gpu_s=gpu_s, known=known, waits=table.operator == WAIT)


def timelines_s(calls: pd.DataFrame, launch_s: Array | float) -> tuple[float, float]:
    """Return the end of the host's timeline and of the GPU's, in seconds.

    `calls` are in order, with their `launches`, `gpu_s` and `waits`; `launch_s` is the host's time
    per launch.
    """
    host = gpu = 0.0
    launching_s = calls.launches.to_numpy() * launch_s
    for host_s, gpu_s, waits in zip(launching_s, calls.gpu_s, calls.waits, strict=True):
        if waits:
            host = max(host, gpu)
        host += host_s
        if gpu_s:
            gpu = max(gpu, host) + gpu_s
    return host, gpu


def fit_launch_s(calls: pd.DataFrame, measured_s: float) -> float:
    """Return the host's time per launch for which calls take as long as measured.

    It is 0 if the GPU alone takes longer.
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
        whole_s = float(case["iteration_time_s"].median("iteration"))
        return dict.fromkeys(PARTS, fit_launch_s(calls, whole_s))
    return {
        part: fit_launch_s(calls[calls.part == part], float(parts_s.sel(part=part)))
        for part in PARTS
    }


def gpu_iterations(measured: xr.Dataset) -> pd.DataFrame:
    """Compare predicted iterations with measured ones.

    Parameters
    ----------
    measured : Dataset
        Result of `repro.experiments.machine.gpu_iterations.measure_gpu_iterations`.

    Returns
    -------
    DataFrame
        A row per judged case: model, samples, tables; measured_ms, the median of iterations;
        predicted_ms; host_ms and gpu_ms, the work of each alone; traced_ms, the GPU's work in the
        trace; known_pct, its fraction with a microbenchmark; `longer`, which of host and GPU has
        more work; and error_pct.
    """
    calls = gpu_calls(measured)
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
                "gpu_ms": 1e3 * float(own.gpu_s.sum()),
                "traced_ms": 1e3 * float(own.busy_s.sum()),
                "known_pct": 100 * float(own.busy_s[own.known].sum() / own.busy_s.sum()),
            }
        )
    found = judged.reset_index(drop=True).join(pd.DataFrame(rows))
    found["longer"] = np.where(found.gpu_ms > found.host_ms, "gpu", "host")
    return found.assign(error_pct=100 * (found.predicted_ms / found.measured_ms - 1))


def gpu_operator_errors(measured: xr.Dataset) -> pd.DataFrame:
    """Compare the GPU's predicted and traced time of each operator in judged iterations.

    Returns
    -------
    DataFrame
        Indexed by operator with its precisions, the longest first: calls, traced_ms, predicted_ms
        and known.
    """
    calls = gpu_calls(measured)
    judged = calls[(measured["case_role"].values[calls.case] == JUDGED) & ~calls.waits]
    found = judged.groupby("operator").agg(
        calls=("case", "size"),
        traced_ms=("busy_s", "sum"),
        predicted_ms=("gpu_s", "sum"),
        known=("known", "first"),
    )
    found[["traced_ms", "predicted_ms"]] *= 1e3
    table: pd.DataFrame = found.sort_values("traced_ms", ascending=False)
    return table


def gpu_iteration_errors(found: pd.DataFrame) -> pd.DataFrame:
    """Summarize errors of `gpu_iterations` of GPUs (`repro.results.measured.by_gpu`).

    The index is gpu, kind (transformer or dlrm) and `longer`.
    """
    kinds = found.model.where(found.model == "dlrm", "transformer").rename("kind")
    return summarize_errors(found, ["gpu", kinds, "longer"])
