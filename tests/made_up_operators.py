"""A made-up machine: what it measured of operators, and iterations that follow from them."""

from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

# An addition takes 1 us and 2 ns an element; a collective 50 us and 1 ns a byte; the host 40 us to
# begin a pass of a recommendation model, 10 us for each outermost operator that autograd has a part
# in, 2 us for each view, and longer behind operators that move more than a megabyte: by as much as
# a small module of 30 us, in loops without autograd an operator by itself, of 5 us.
BEGIN_S, HOST_S, VIEW_S, MODULE_S, LOOP_S = 4e-5, 1e-5, 2e-6, 3e-5, 5e-6


def add_s(elements: float) -> float:
    """Seconds of an addition."""
    return 1e-6 + 2e-9 * elements


def reduce_s(size: float) -> float:
    """Seconds of an all-reduce among two ranks."""
    return 5e-5 + 1e-9 * size


def slower(added: float) -> float:
    """What a launch takes longer behind an addition of so many elements: at 16 MB as much again,
    and so on, which is a line in logarithms."""
    # Two operands and a result.
    return float(np.log(max(1.0, 12 * added / 1e6)) / np.log(16))


# Elements that each rank adds up before and behind an all-reduce of so many bytes, by plan.
PLANS = {"even": ((4e6, 4e6), 8e5), "uneven": ((7e6, 1e6), 4e5)}


def made_up_operators(factor: float = 1.0) -> xr.Dataset:
    """Two models and two plans; judged iterations take `factor` of what is to be expected."""
    elements, sizes = np.geomspace(10, 1e8, 200), np.geomspace(64, 1e7, 200)
    points = [(1, "add/2", size, add_s(size)) for size in elements]
    for launch, takes_s in (("launch", MODULE_S), ("launch in a loop", LOOP_S)):
        points += [(1, launch, size, takes_s) for size in (1e2, 1e3, 1e6)]
        points += [(1, launch, 1e6 * 16**power, takes_s * (1 + power)) for power in (1, 2)]
    points += [(1, "launch of a view", 0.0, VIEW_S)]
    points += [(2, "all_reduce", size, reduce_s(size)) for size in sizes]
    cases: list[dict[str, object]] = []
    calls: list[dict[str, object]] = []
    passes_s: list[list[float]] = []

    def case(role: str, model: str, seconds: list[float], plan: str = "") -> None:
        """Of so many passes."""
        one = {"role": role, "model": model, "plan": plan, "tables": 0}
        ranks = 2 if model == "dlrm" else 1
        cases.append({**one, "ranks": ranks, "time_s": sum(seconds)})
        passes_s.append([*seconds, *(3 - len(seconds)) * [np.nan]])

    def call(
        where: tuple[int, int],
        operator: str,
        size: tuple[float, ...],
        times: int,
        autograd: bool = True,
    ) -> None:
        """On a rank in a segment."""
        rank, segment = where
        one = {"case": len(cases) - 1, "rank": rank, "segment": segment, "autograd": autograd}
        calls.append({**one, "operator": operator, "size": size, "calls": times, "traced_s": 1.0})

    for model, number in (("small", 1e4), ("large", 1e6)):
        for role, count, times in (("fewer samples", 20.0, 1.0), ("judged", number, factor)):
            host_s = 30 * VIEW_S + 24 * HOST_S + 20 * MODULE_S * slower(count)
            case(role, model, [times * (host_s + 20 * add_s(count))])
            call((0, 0), "host", (), 24)
            call((0, 0), "host of a view", (), 30)
            call((0, 0), "add/2", (count,), 20)
    # The first pass looks something up and tells nothing; collectives are in no pass.
    of_autograd = BEGIN_S + 5 * HOST_S + 5 * add_s(20.0)
    case("fewer samples", "dlrm", [1.0, of_autograd, BEGIN_S + 3 * add_s(20.0)])
    call((0, 0), "index_select", (1e6, 48.0, 1e5), 1)
    call((0, 1), "host", (), 5)
    call((0, 1), "add/2", (20.0,), 5)
    call((0, 1), "all_reduce", (8e5,), 1)
    call((0, 2), "host", (), 3, autograd=False)
    call((0, 2), "add/2", (20.0,), 3, autograd=False)
    for plan, (added, size) in PLANS.items():
        passes = sum(plan_passes_s(max(added)))
        case("judged", "dlrm", [factor * (passes + reduce_s(size))], plan)
        for rank, segment in product((0, 1), (0, 1)):
            where, autograd = (rank, segment), segment == 0
            call(where, "host of a view", (), 5, autograd)
            call(where, "host", (), 1, autograd)
            call(where, "add/2", (added[rank],), 1, autograd)
            if segment == 0:
                call(where, "all_reduce", (size,), 1)
    return _dataset(points, passes_s, pd.DataFrame(cases), pd.DataFrame(calls))


def plan_passes_s(added: float) -> tuple[float, float]:
    """Seconds of the passes of a plan, with autograd and without."""
    both = BEGIN_S + add_s(added) + 5 * VIEW_S
    return both + HOST_S + MODULE_S * slower(added), both + LOOP_S * slower(added)


def _dataset(
    points: list[tuple[int, str, float, float]],
    passes_s: list[list[float]],
    cases: pd.DataFrame,
    calls: pd.DataFrame,
) -> xr.Dataset:
    times = cases.pop("time_s").to_numpy()
    call_sizes = _padded(list(calls.pop("size")))
    repeats = np.array([0.9, 1.0, 1.1])
    return xr.Dataset(
        {
            "operator_ranks": ("benchmark", [ranks for ranks, *_ in points]),
            "operator_name": ("benchmark", [name for _, name, _, _ in points]),
            "operator_size": (
                ("benchmark", "axis"),
                _padded([(size,) for _, _, size, _ in points]),
            ),
            "operator_time_s": (
                ("benchmark", "repeat"),
                np.outer([seconds for *_, seconds in points], repeats),
            ),
            "iteration_time_s": ("case", times),
            "iteration_time_drawn_s": (("case", "draw"), drawn(times)),
            "pass_time_s": (
                ("case", "iteration", "rank", "pass"),
                np.array(passes_s)[:, None, None],
            ),
            "call_size": (("call", "axis"), call_sizes),
            **{f"case_{name}": ("case", cases[name].to_numpy()) for name in cases},
            **{f"call_{name}": ("call", calls[name].to_numpy()) for name in calls},
        }
    )


def drawn(times: np.ndarray, together: bool = False) -> np.ndarray:
    """Times (case) of turns drawn again (draw), known to 1 %, each by itself or all together."""
    errors = np.random.default_rng(1).normal(size=(1 if together else len(times), 1000))
    return np.asarray(times)[:, None] * (1 + 0.01 * errors / errors.std(axis=1, keepdims=True))


def _padded(sizes: list[tuple[float, ...]]) -> np.ndarray:
    return np.array([[*size, *(4 - len(size)) * [np.nan]] for size in sizes], dtype=float)
