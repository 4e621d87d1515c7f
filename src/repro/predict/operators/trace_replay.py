"""Iterations predicted by replaying their traces with microbenchmarked operator times.

A rank runs its operators one after another on one thread; ranks meet in collectives. The critical
path is the slowest rank's operators in each segment between two collectives, and the collectives
(Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU
Platforms", 2024). Operator times are interpolated between sizes that were measured alone.

Host time comes from an iteration of the same model on fewer samples. Beginning a pass takes what a
loop over operators takes beyond them. Each launch in which autograd has a part takes the rest of
the other passes' time, divided by the number of such launches. Launches take longer after operators
that move many bytes, which evict the host's data from the caches: by as many seconds as a small
operator was measured to, a module where autograd has a part, else an operator of a loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.optimize import isotonic_regression

from repro.catalog.studies.operator_benchmarks import (
    COLLECTIVES,
    EMBEDDING_BAG,
    INDEX_ADD,
    LAUNCHED_VIEW,
    LAUNCHES,
    LOOKUPS,
    in_cache_lines,
    last_used_bytes,
    moved_bytes,
)
from repro.logs.operator_trace import HOST, HOST_OF_VIEW, HOSTS, TracedOperator
from repro.observe.precision import NORMAL_QUANTILE
from repro.predict.operators.curves import SIZES, Curve, calls_with_curves, curves, sizes_of
from repro.predict.workload import Array
from repro.results.store import has_runs, why_not_run

FEWER, JUDGED = "fewer samples", "judged"
_CALL_COLUMNS = ("case", "rank", "segment", "operator", "autograd", "calls", "traced_s")
_COMPARED = ("measured_s", "predicted_s")
_CASE_COLUMNS = ("model", "role", "tables", "plan", "ranks")


def calls(results: xr.Dataset) -> pd.DataFrame:
    """Predict every call of the traced iterations.

    Returns
    -------
    DataFrame
        Rows as `repro.logs.operator_trace.TracedOperator`, by case and rank, with the columns of
        `with_seconds`.
    """
    columns = {name: results[f"call_{name}"].values for name in _CALL_COLUMNS}
    table = sizes_of(results, "call").assign(**columns)
    ranks = results["case_ranks"].values[table.case]
    return pd.concat(
        [with_seconds(table[ranks == own], curves(results, own)) for own in np.unique(ranks)]
    ).sort_index()


def with_seconds(table: pd.DataFrame, measured: Mapping[str, Curve]) -> pd.DataFrame:
    """Predict calls from microbenchmarks; those of one case and rank are an iteration.

    Returns
    -------
    DataFrame
        The table with `known`, whether the operator has a microbenchmark; `seconds` of all calls of
        a row, 0 for others and for the host; `launches` in which autograd has a part; `host_s`, the
        host's time for views and its longer time after operators that move many bytes.
    """
    table = _with_row_reuse(table, measured)
    autograd, calls = table.autograd.to_numpy(), table.calls.to_numpy()
    seconds, host_s = np.zeros(len(table)), np.zeros(len(table))
    for operator, at, sizes in calls_with_curves(table, measured):
        seconds[at] = measured[operator].seconds(in_cache_lines(operator, sizes)) * calls[at]
        if operator not in COLLECTIVES.values():
            moved = moved_bytes(operator, sizes)
            in_module_s, in_loop_s = (_longer_s(measured[name], moved) for name in LAUNCHES)
            host_s[at] = np.where(autograd[at], in_module_s, in_loop_s) * calls[at]
    if (views := (table.operator == HOST_OF_VIEW).to_numpy()).any():
        host_s[views] = measured[LAUNCHED_VIEW].times_s.squeeze() * calls[views]
    return table.assign(
        seconds=seconds,
        host_s=host_s,
        launches=np.where(autograd & (table.operator == HOST), calls, 0.0),
        known=table.operator.isin(list(measured)),
    )


def _longer_s(launch: Curve, moved_bytes: Array) -> Array:
    """Return how much longer a launch takes after this many bytes; more bytes never take less."""
    rising = replace(launch, times_s=isotonic_regression(launch.times_s).x)
    longer_s: Array = rising.seconds(moved_bytes[:, None]) - rising.times_s[0]
    return longer_s


def _with_row_reuse(table: pd.DataFrame, measured: Mapping[str, Curve]) -> pd.DataFrame:
    """Set the last size of calls that change rows of a table: bytes that the rank used since then.

    They count from its last sum of rows of a table of that size, or from the iteration's begin.
    """
    used = pd.Series(0.0, table.index)
    for operator, at, sizes in calls_with_curves(table, measured):
        if operator not in COLLECTIVES.values():
            used.iloc[at] = last_used_bytes(operator, sizes)
    used *= table.calls
    until = used.groupby([table.case, table["rank"]]).cumsum()
    own, of = ["case", "rank"], ["width", "rows"]
    bags = table[table.operator == EMBEDDING_BAG].rename(
        columns=dict(zip(SIZES[2:], of, strict=True))
    )
    looked_up = bags.assign(until=until).groupby([*own, *of]).until.last()
    changed = table.operator == INDEX_ADD
    changes = table[changed].rename(columns=dict(zip(SIZES[1:3], of, strict=True)))
    tables = pd.MultiIndex.from_frame(changes[[*own, *of]])
    since = looked_up.reindex(tables, fill_value=0.0).to_numpy()
    return table.assign(size_3=table.size_3.mask(changed, (until - used)[changed] - since))


def iterations(results: xr.Dataset) -> pd.DataFrame:
    """Predict the judged iterations.

    Returns
    -------
    DataFrame
        A row per judged case, indexed by its number: `model`, `tables`, `plan`, `ranks`,
        `measured_s` and its standard error `measured_error_s`, `predicted_s` with its parts
        `host_s` and `collectives_s`, and `error_pct`.
    """
    every = calls(results)
    cases = pd.DataFrame({name: results[f"case_{name}"].values for name in _CASE_COLUMNS}).assign(
        measured_s=results["iteration_time_s"].values,
        measured_error_s=results["iteration_time_drawn_s"].std("draw").values,
    )
    hosts = {}
    for number, case in cases[cases.role != JUDGED].to_dict("index").items():
        passes_s = results["pass_time_s"].isel(case=number).median("iteration").to_series()
        hosts[case["model"], case["ranks"]] = _host(every[every.case == number], passes_s.dropna())
    judged = cases[cases.role == JUDGED].drop(columns="role")
    of_case = pd.DataFrame(
        [hosts[key] for key in zip(judged.model, judged.ranks, strict=True)],
        judged.index,
        ["pass_s", "launch_s"],
    )
    found = judged.join(_paths(every[every.case.isin(judged.index)].join(of_case, on="case")))
    found["error_pct"] = 100 * (found.predicted_s / found.measured_s - 1)
    return found


def _host(own: pd.DataFrame, passes_s: pd.Series) -> tuple[float, float]:
    """Return the host's seconds to begin a pass, and per launch in which autograd has a part.

    Both come from one iteration's passes by rank and segment. Passes without lookups are preferred:
    caches hold more of few lookups than of many. If autograd has a part in every pass, the launches
    contain the beginning.
    """
    computing = own[~own.operator.isin(COLLECTIVES.values())]
    looking = computing.operator.isin([*LOOKUPS, EMBEDDING_BAG])
    others = computing[~computing.segment.isin(computing.segment[looking])]
    chosen = others if len(others) else computing
    passes = chosen.groupby(["rank", "segment"])[["seconds", "host_s", "launches"]].sum()
    left_s = passes_s.reindex(passes.index) - passes.seconds - passes.host_s
    loops = passes.launches == 0
    pass_s = float(left_s[loops].mean()) if loops.any() else 0.0
    launched = passes.launches[~loops].sum()
    launch_s = float((left_s[~loops] - pass_s).sum() / launched) if launched else 0.0
    return pass_s, launch_s


def _paths(own: pd.DataFrame) -> pd.DataFrame:
    """Return the critical path of every case's iteration; calls have `pass_s` and `launch_s`."""
    meets = own.operator.isin(COLLECTIVES.values())
    computing = own.assign(host_s=own.host_s + own.launches * own.launch_s)[~meets]
    passes = computing.groupby(["case", "segment", "rank"])
    by_rank = passes[["seconds", "host_s"]].sum()
    by_rank["host_s"] += passes.pass_s.first()
    by_rank["busy_s"] = by_rank.seconds + by_rank.host_s
    slowest = by_rank.loc[by_rank.groupby(["case", "segment"]).busy_s.idxmax()]
    path = slowest.groupby("case").sum()
    # A collective ends on all ranks when the one with most to move is done.
    collectives_s = own[meets].groupby(["case", "segment"]).seconds.max().groupby("case").sum()
    path["collectives_s"] = collectives_s.reindex(path.index, fill_value=0.0)
    path["predicted_s"] = path.busy_s + path.collectives_s
    return path[["predicted_s", "host_s", "collectives_s"]]


def replay_trace(
    rows: Sequence[TracedOperator], results: xr.Dataset, ranks: int = 1
) -> pd.DataFrame:
    """Predict a trace's operators from microbenchmarks, collectives among this many ranks.

    Returns
    -------
    DataFrame
        A row per operator, the longest first: `calls`, `traced_ms` (with the profiler's own time),
        `predicted_ms`, and `known`, whether it has a microbenchmark.
    """
    table = pd.DataFrame([vars(row) for row in rows])
    sizes = pd.DataFrame(table.pop("sizes").tolist()).reindex(columns=range(len(SIZES)))
    table[list(SIZES)] = sizes.to_numpy(dtype=float)
    table = table.assign(case=0, rank=0)
    timed = with_seconds(table[~table.operator.isin(HOSTS)], curves(results, ranks))
    found = timed.groupby(["operator", "known"]).agg(
        calls=("calls", "sum"), traced_ms=("traced_s", "sum"), predicted_ms=("seconds", "sum")
    )
    found[["traced_ms", "predicted_ms"]] *= 1e3
    return found.sort_values("traced_ms", ascending=False).reset_index()


def plans(results: xr.Dataset) -> pd.DataFrame:
    """Compare the fastest plan of each set of tables with the one predicted to be fastest.

    Returns
    -------
    DataFrame
        A row for each set of tables and number of ranks: `fastest`; `chosen` by the prediction;
        `found`, whether they are the same; `lost_pct`, how much slower the chosen one is; and
        `told_apart`, whether it is slower by more than the interval of the difference.
    """
    found, drawn_s = iterations(results), results["iteration_time_drawn_s"]
    rows = []
    for (ranks, tables), own in found[found.plan != ""].groupby(["ranks", "tables"]):
        fastest, chosen = (own.iloc[int(own[name].argmin())] for name in _COMPARED)
        # Plans were measured in turns, so draws of the same turns are compared.
        error_s = float((drawn_s.isel(case=chosen.name) - drawn_s.isel(case=fastest.name)).std())
        rows.append(
            {
                "ranks": ranks,
                "tables": tables,
                "fastest": fastest.plan,
                "chosen": chosen.plan,
                "found": fastest.plan == chosen.plan,
                "lost_pct": 100 * (chosen.measured_s / fastest.measured_s - 1),
                "told_apart": chosen.measured_s - fastest.measured_s > NORMAL_QUANTILE * error_s,
            }
        )
    return pd.DataFrame(rows)


def geometric_mean_pct(errors_pct: pd.Series) -> float:
    """Return the geometric mean of absolute errors."""
    return float(np.exp(np.log(errors_pct.abs()).mean()))


def summarize_errors(found: pd.DataFrame, by: Any) -> pd.DataFrame:
    """Summarize `error_pct` of predicted iterations in groups, as `DataFrame.groupby` takes them.

    Returns
    -------
    DataFrame
        iterations; geometric_mean_pct and mean_pct of absolute errors; bias_pct and largest_pct.
    """
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


def errors_by_model(results: xr.Dataset) -> pd.DataFrame:
    """Summarize errors of predicted iterations, a row per model, and one of all."""
    if not has_runs(results):
        return _not_run(results)
    found = iterations(results)
    every = np.full(len(found), "all")
    return pd.concat([summarize_errors(found, by) for by in ("model", every)]).round(1)


def iteration_table(results: xr.Dataset) -> pd.DataFrame:
    """Return `iterations` in milliseconds."""
    if not has_runs(results):
        return _not_run(results)
    found = iterations(results)
    times = [name for name in found.columns if name.endswith("_s")]
    in_ms = {name.replace("_s", "_ms"): 1e3 * found[name] for name in times}
    return found.drop(columns=times).assign(**in_ms).round(2)


def plan_table(results: xr.Dataset) -> pd.DataFrame:
    """Return `plans` of measured iterations."""
    return plans(results).round(1) if has_runs(results) else _not_run(results)


def coverage(results: xr.Dataset) -> pd.DataFrame:
    """Count the calls in judged iterations that have a microbenchmark.

    Returns
    -------
    DataFrame
        A row per model: `calls` with a microbenchmark; `measured_themselves`, those of measured
        sizes; `known_pct`, the fraction of the traced time in such calls; `others`, the three
        longest operators without one.
    """
    if not has_runs(results):
        return _not_run(results)
    sizes = ["operator", *SIZES]
    points = sizes_of(results, "operator").assign(operator=results["operator_name"].values)
    every = calls(results).merge(points[sizes].drop_duplicates(), "left", sizes, indicator="point")
    every["model"] = results["case_model"].values[every.case]
    of_judged = results["case_role"].values[every.case] == JUDGED
    judged = every[of_judged & ~every.operator.isin(HOSTS)]
    rows = {}
    for model, own in judged.groupby("model"):
        known, others = own[own.known], own[~own.known]
        longest = others.groupby("operator").traced_s.sum().nlargest(3)
        rows[model] = {
            "calls": known.calls.sum(),
            "measured_themselves": known[known.point == "both"].calls.sum(),
            "known_pct": round(100 * known.traced_s.sum() / own.traced_s.sum(), 1),
            "others": ", ".join(map(str, longest.index)),
        }
    return pd.DataFrame(rows).T


def _not_run(results: xr.Dataset) -> pd.DataFrame:
    return pd.DataFrame({"not run": [why_not_run(results)]})
