"""Iterations of a GPU timed again from its operators: a clock of the host, and one of the GPU.

The host launches one call after the other, and goes on; the GPU works on them in that order. A call
begins when it is launched and the one before it has ended; where the host waits, it goes on when
the GPU has done all. The longer of the two clocks is the iteration, as in Lin et al., "Towards
Universal Performance Modeling for Machine Learning Training on Multi-GPU Platforms" (2024). What
the GPU takes for a call is interpolated between sizes that were measured alone
(`repro.predict.operators.curves.Curve`); a call that no microbenchmark stands for takes what the
shortest of all takes. What the host takes for a launch is the same within the forward pass, the
backward pass and what is behind them, and comes from another iteration: that of the same model on
the fewest samples.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import brentq

from repro.logs.gpu_trace import PARTS, WAIT
from repro.predict.operators.curves import Curve, calls_with_curves, curve_of, sizes_of
from repro.predict.operators.retimed import FEWER, JUDGED, errors_pct
from repro.predict.workload import Array

# No launch takes longer.
_LONGEST_LAUNCH_S = 1.0


def gpu_curves(measured: xr.Dataset) -> dict[str, Curve]:
    """Seconds of operators by their name and precisions: medians over repeats.

    Operators of which some size could not be measured have no curve.
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
    """Every case's calls in order, timed again.

    Returns
    -------
    DataFrame
        case, part, operator, launches, busy_s (in the trace); `gpu_s`, what microbenchmarks let
        expect, and whether one stands for the operator (`known`); `waits`, whether the host does.
    """
    names = measured["operator"].values
    table = sizes_of(measured, "call").assign(
        case=measured["call_case"].values,
        part=np.array(PARTS)[measured["call_part"].values],
        operator=names[measured["call_operator"].values],
        launches=measured["call_launches"].values.astype(float),
        busy_s=measured["call_busy_s"].values.astype(float),
    )
    curves = gpu_curves(measured)
    shortest_s = float(measured["benchmark_time_s"].median("repeat").min())
    gpu_s = shortest_s * table.launches.to_numpy()
    for operator, at, sizes in calls_with_curves(table, curves):
        gpu_s[at] = curves[operator].seconds(sizes)
    known = table.operator.isin(list(curves))
    return table.assign(gpu_s=gpu_s, known=known, waits=table.operator == WAIT)


def clocks_s(
    launches: Array, gpu_s: Array, waits: Array, launch_s: Array | float
) -> tuple[float, float]:
    """What the host's clock shows when it has launched everything, and the GPU's at its end.

    Parameters
    ----------
    launches, gpu_s, waits
        Of each call in order: how many launches it takes, how long the GPU works on it, and whether
        the host waits for all before it.
    launch_s
        What the host takes for one of its launches.
    """
    host = gpu = 0.0
    for takes_s, work_s, wait in zip(launches * launch_s, gpu_s, waits, strict=True):
        if wait:
            host = max(host, gpu)
        host += takes_s
        if work_s:
            gpu = max(gpu, host) + work_s
    return host, gpu


def launch_s(calls: pd.DataFrame, measured_s: float) -> float:
    """What the host takes for a launch, so that these calls take so long; nothing where the GPU
    alone takes longer."""
    launches, gpu_s, waits = (
        calls[name].to_numpy(dtype=float) for name in ("launches", "gpu_s", "waits")
    )

    def too_long_s(one_s: float) -> float:
        return max(clocks_s(launches, gpu_s, waits, one_s)) - measured_s

    if too_long_s(0.0) >= 0:
        return 0.0
    return float(brentq(too_long_s, 0.0, _LONGEST_LAUNCH_S, xtol=1e-9))


def gpu_iterations(measured: xr.Dataset) -> pd.DataFrame:
    """Measured iterations and what is predicted of them.

    Parameters
    ----------
    measured : Dataset
        By `repro.experiments.machine.gpu_iterations.measure_gpu_iterations`.

    Returns
    -------
    DataFrame
        A row per case that is judged: model, samples, tables; measured_ms, the median of
        iterations; predicted_ms, with host_ms and gpu_ms, what the host launches and the GPU works
        by itself; `longer`, which of these is; traced_ms, what the GPU worked in the trace;
        known_pct, the share of that for which microbenchmarks stand; and error_pct.
    """
    calls = gpu_calls(measured)
    cases = pd.DataFrame(
        {name: measured[f"case_{name}"].values for name in ("model", "samples", "tables", "role")}
    ).assign(measured_ms=1e3 * measured["iteration_time_s"].median("iteration").values)
    hosts = {
        case["model"]: _launches_s(calls[calls.case == number], measured.isel(case=number))
        for number, case in cases[cases.role == FEWER].to_dict("index").items()
    }
    rows = []
    for number, case in cases[cases.role == JUDGED].to_dict("index").items():
        own = calls[calls.case == number]
        each_s = own.part.map(hosts[case["model"]]).to_numpy()
        arrays = own.launches.to_numpy(), own.gpu_s.to_numpy(), own.waits.to_numpy()
        rows.append(
            {
                **{name: case[name] for name in ("model", "samples", "tables", "measured_ms")},
                "predicted_ms": 1e3 * max(clocks_s(*arrays, each_s)),
                "host_ms": 1e3 * float((arrays[0] * each_s).sum()),
                "gpu_ms": 1e3 * float(own.gpu_s.sum()),
                "traced_ms": 1e3 * float(own.busy_s.sum()),
                "known_pct": 100 * float(own.busy_s[own.known].sum() / own.busy_s.sum()),
            }
        )
    found = pd.DataFrame(rows)
    found["longer"] = np.where(found.gpu_ms > found.host_ms, "gpu", "host")
    return found.assign(error_pct=100 * (found.predicted_ms / found.measured_ms - 1))


def _launches_s(calls: pd.DataFrame, case: xr.Dataset) -> Mapping[str, float]:
    """What the host takes for a launch, by part; the same in all where only the whole is known."""
    parts_s = case["part_time_s"].median("iteration")
    if parts_s.isnull().any():
        whole_s = float(case["iteration_time_s"].median("iteration"))
        return dict.fromkeys(PARTS, launch_s(calls, whole_s))
    return {
        part: launch_s(calls[calls.part == part], float(parts_s.sel(part=part))) for part in PARTS
    }


def gpu_operator_errors(measured: xr.Dataset) -> pd.DataFrame:
    """What the GPU worked on each operator in judged iterations, and what is predicted of it.

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
    """Errors of transformers and of DLRMs, by which of host and GPU is predicted to take longer.

    Parameters
    ----------
    found : DataFrame
        `gpu_iterations` of some GPUs (`repro.results.measured.by_gpu`).

    Returns
    -------
    DataFrame
        Indexed by gpu, kind and `longer`: iterations, geometric_mean_pct, mean_pct, bias_pct and
        largest_pct.
    """
    kinds = found.model.where(found.model == "dlrm", "transformer").rename("kind")
    return pd.DataFrame(
        {
            key: {"iterations": len(own), **errors_pct(own.error_pct)}
            for key, own in found.groupby(["gpu", kinds, "longer"])
        }
    ).T.rename_axis(["gpu", "kind", "longer"])
