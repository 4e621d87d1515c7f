"""Iterations timed again from microbenchmarks of the operators that a trace of them has.

A rank's operators run one after the other on one thread; ranks meet in collectives. The critical
path is the slowest rank's operators of each segment between two collectives, and the collectives,
as in Lin et al., "Towards Universal Performance Modeling for Machine Learning Training on Multi-GPU
Platforms" (2024). What an operator takes is interpolated between sizes that were measured alone.
What the host does beside them comes from an iteration on fewer samples. A loop over operators does
hardly more than call them, as their microbenchmarks do: what its pass takes beyond them it takes to
begin. For those that autograd records or runs it does the same for each, in Python and autograd:
the time of other passes less the beginning and the operators, over their number. All take longer
behind operators that move many bytes, which evict what the host runs on from the caches: by as many
seconds as a small one was measured to, a module where autograd has a part, else one of a loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
_COMPARED = ("measured_s", "predicted_s")


def calls(results: xr.Dataset) -> pd.DataFrame:
    """Every call of the traced iterations, with `seconds` of all its calls.

    Returns
    -------
    DataFrame
        Rows as `repro.logs.operator_trace.TracedOperator`, by case and rank. `known` is whether a
        microbenchmark stands for the operator; others and the host have 0 seconds here. `launches`
        are the host's of what autograd has a part in; `host_s` is what it takes for views, and
        longer behind many bytes.
    """
    table = sizes_of(results, "call").assign(
        **{
            name: results[f"call_{name}"].values
            for name in ("case", "rank", "segment", "operator", "autograd", "calls", "traced_s")
        }
    )
    ranks = results["case_ranks"].values[table.case]
    return pd.concat(
        [with_seconds(table[ranks == own], curves(results, own)) for own in np.unique(ranks)]
    ).sort_index()


def with_seconds(table: pd.DataFrame, measured: Mapping[str, Curve]) -> pd.DataFrame:
    """Calls with what microbenchmarks let expect of them; `known` says of which they do. Those of
    one case and rank are an iteration."""
    table = _behind(table, measured)
    autograd, calls = table.autograd.to_numpy(), table.calls.to_numpy()
    seconds, host_s = np.zeros(len(table)), np.zeros(len(table))
    launches = np.where(autograd & (table.operator == HOST), calls, 0.0)
    launched = [_launch(measured[name]) for name in LAUNCHES]
    for operator, at, sizes in calls_with_curves(table, measured):
        seconds[at] = measured[operator].seconds(in_cache_lines(operator, sizes)) * calls[at]
        if operator not in COLLECTIVES.values():
            moved = moved_bytes(operator, sizes)
            in_module_s, in_loop_s = (_longer_s(launch, moved) for launch in launched)
            host_s[at] = np.where(autograd[at], in_module_s, in_loop_s) * calls[at]
    if (views := (table.operator == HOST_OF_VIEW).to_numpy()).any():
        host_s[views] = measured[LAUNCHED_VIEW].times_s.squeeze() * calls[views]
    known = table.operator.isin(list(measured))
    return table.assign(seconds=seconds, host_s=host_s, launches=launches, known=known)


def _behind(table: pd.DataFrame, measured: Mapping[str, Curve]) -> pd.DataFrame:
    """Calls, those that change rows behind what their rank has gone through since it summed up
    rows of a table of that size, or since its iteration began."""
    through = pd.Series(0.0, table.index)
    for operator, at, sizes in calls_with_curves(table, measured):
        if operator not in COLLECTIVES.values():
            through.iloc[at] = last_used_bytes(operator, sizes)
    through *= table.calls
    until = through.groupby([table.case, table["rank"]]).cumsum()
    own, of = ["case", "rank"], ["width", "rows"]
    bags = table[table.operator == EMBEDDING_BAG].rename(
        columns=dict(zip(SIZES[2:], of, strict=True))
    )
    looked_up = bags.assign(until=until).groupby([*own, *of]).until.last()
    changed = table.operator == INDEX_ADD
    changes = table[changed].rename(columns=dict(zip(SIZES[1:3], of, strict=True)))
    tables = pd.MultiIndex.from_frame(changes[[*own, *of]])
    since = looked_up.reindex(tables, fill_value=0.0).to_numpy()
    return table.assign(size_3=table.size_3.mask(changed, (until - through)[changed] - since))


def _launch(launch: Curve) -> Curve:
    """What a launch takes behind so many bytes: with more never less."""
    return replace(launch, times_s=isotonic_regression(launch.times_s).x)


def _longer_s(launch: Curve, moved_bytes: Array) -> Array:
    """What a launch takes longer behind so many bytes than behind none."""
    longer_s: Array = launch.seconds(moved_bytes[:, None]) - launch.times_s[0]
    return longer_s


def iterations(results: xr.Dataset) -> pd.DataFrame:
    """Measured and re-timed iterations.

    Returns
    -------
    DataFrame
        A row per case that is judged: `model`, `tables`, `plan`, `ranks`, `measured_s` and its
        standard error `measured_error_s`, `predicted_s` with its parts `host_s` and
        `collectives_s`, and `error_pct`; its index is the number of the case.
    """
    every = calls(results)
    cases = pd.DataFrame(
        {
            name: results[f"case_{name}"].values
            for name in ("model", "role", "tables", "plan", "ranks")
        }
    ).assign(
        measured_s=results["iteration_time_s"].values,
        measured_error_s=results["iteration_time_drawn_s"].std("draw").values,
    )
    hosts: dict[tuple[str, int], _Host] = {}
    for number, case in cases[cases.role != JUDGED].to_dict("index").items():
        passes_s = results["pass_time_s"].isel(case=number).median("iteration").to_series()
        hosts[case["model"], case["ranks"]] = _host(every[every.case == number], passes_s.dropna())
    judged = cases[cases.role == JUDGED].drop(columns="role")
    own = every[every.case.isin(judged.index)]
    of_case = judged.apply(lambda one: pd.Series(vars(hosts[one.model, one.ranks])), axis=1)
    found = judged.join(_paths(own.join(of_case, on="case")))
    found["error_pct"] = 100 * (found.predicted_s / found.measured_s - 1)
    return found


@dataclass(frozen=True)
class _Host:
    """Seconds that the host takes to begin a pass, and for a launch that autograd has a part in."""

    pass_s: float
    launch_s: float


def _host(own: pd.DataFrame, passes_s: pd.Series) -> _Host:
    """Of an iteration, from its passes by rank and segment.

    Where some look nothing up, from these: of few lookups caches hold more than of many. Where
    autograd has a part in every pass, to begin is in what a launch takes.
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
    return _Host(pass_s, launch_s)


def _paths(own: pd.DataFrame) -> pd.DataFrame:
    """The critical path of every case's iteration; each call with its case's host."""
    meets = own.operator.isin(COLLECTIVES.values())
    computing = own.assign(host_s=own.host_s + own.launches * own.launch_s)[~meets]
    passes = computing.groupby(["case", "segment", "rank"])
    by_rank = passes[["seconds", "host_s"]].sum()
    by_rank["host_s"] += passes.pass_s.first()
    by_rank["busy_s"] = by_rank.seconds + by_rank.host_s
    # The slowest rank's of each segment.
    slowest = by_rank.loc[by_rank.groupby(["case", "segment"]).busy_s.idxmax()]
    path = slowest.groupby("case").sum()
    # All ranks are in it until the one with most to move is done.
    collectives_s = own[meets].groupby(["case", "segment"]).seconds.max().groupby("case").sum()
    path["collectives_s"] = collectives_s.reindex(path.index, fill_value=0.0)
    path["predicted_s"] = path.busy_s + path.collectives_s
    return path[["predicted_s", "host_s", "collectives_s"]]


def retimed_trace(
    rows: Sequence[TracedOperator], results: xr.Dataset, ranks: int = 1
) -> pd.DataFrame:
    """A trace's operators, timed again from what was measured of them on another occasion, of
    collectives among as many ranks.

    Returns
    -------
    DataFrame
        A row per operator, the longest first: `calls`, `traced_ms` (with the profiler's own time),
        `predicted_ms`, and whether a microbenchmark stands for it (`known`).
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
    """Which plan of each set of tables was fastest, and which was predicted to be.

    Returns
    -------
    DataFrame
        A row for each set of tables and number of ranks: `fastest`, `chosen` by the prediction,
        whether they are the same (`found`), how much slower the chosen one is (`lost_pct`), and
        whether it is known to be (`told_apart`): by more than the interval of the difference.
    """
    found, drawn_s = iterations(results), results["iteration_time_drawn_s"]
    rows = []
    for (ranks, tables), own in found[found.plan != ""].groupby(["ranks", "tables"]):
        fastest, chosen = (own.iloc[int(own[name].argmin())] for name in _COMPARED)
        # Of the same turns, which both had one after the other.
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
    """Of the absolute errors."""
    return float(np.exp(np.log(errors_pct.abs()).mean()))


def errors_pct(errors: pd.Series) -> dict[str, float]:
    """Of some errors: geometric_mean_pct and mean_pct of them without their signs, bias_pct and
    largest_pct."""
    return {
        "geometric_mean_pct": geometric_mean_pct(errors),
        "mean_pct": errors.abs().mean(),
        "bias_pct": errors.mean(),
        "largest_pct": errors.abs().max(),
    }


def errors_by_model(results: xr.Dataset) -> pd.DataFrame:
    """Errors of re-timed iterations, a row per model, and one of all."""
    if not has_runs(results):
        return _not_run(results)
    found = iterations(results)
    groups = {**dict(list(found.groupby("model"))), "all": found}
    return pd.DataFrame(
        {
            name: {"iterations": len(own), **errors_pct(own.error_pct)}
            for name, own in groups.items()
        }
    ).T.round(1)


def iteration_table(results: xr.Dataset) -> pd.DataFrame:
    """`iterations` in milliseconds."""
    if not has_runs(results):
        return _not_run(results)
    found = iterations(results)
    times = [name for name in found.columns if name.endswith("_s")]
    in_ms = {name.replace("_s", "_ms"): 1e3 * found[name] for name in times}
    return found.drop(columns=times).assign(**in_ms).round(2)


def plan_table(results: xr.Dataset) -> pd.DataFrame:
    """`plans` of what was measured."""
    return plans(results).round(1) if has_runs(results) else _not_run(results)


def coverage(results: xr.Dataset) -> pd.DataFrame:
    """What of the judged iterations microbenchmarks stand for.

    Returns
    -------
    DataFrame
        A row per model: `calls` that microbenchmarks stand for, of which `measured_themselves` have
        the very sizes that were measured and are not interpolated; the share of the traced time
        that all of these have (`known_pct`), and the three `others` that have most of the rest.
    """
    if not has_runs(results):
        return _not_run(results)
    sizes = ["operator", *SIZES]
    points = sizes_of(results, "operator").assign(operator=results["operator_name"].values)
    points = points[sizes].drop_duplicates().assign(same=True)
    every = calls(results).merge(points, on=sizes, how="left")
    every["model"] = results["case_model"].values[every.case]
    of_judged = results["case_role"].values[every.case] == JUDGED
    judged = every[of_judged & ~every.operator.isin(HOSTS)]
    rows = {}
    for model, own in judged.groupby("model"):
        known, others = own[own.known], own[~own.known]
        longest = others.groupby("operator").traced_s.sum().nlargest(3)
        rows[model] = {
            "calls": known.calls.sum(),
            "measured_themselves": known[known.same.notna()].calls.sum(),
            "known_pct": round(100 * known.traced_s.sum() / own.traced_s.sum(), 1),
            "others": ", ".join(map(str, longest.index)),
        }
    return pd.DataFrame(rows).T


def _not_run(results: xr.Dataset) -> pd.DataFrame:
    return pd.DataFrame({"not run": [why_not_run(results)]})
