"""A made-up machine: what it measured of operators, and iterations that follow from them."""

from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

# An addition takes 1 us and 2 ns an element; a collective 50 us and 1 ns a byte; the host 10 us for
# each outermost operator, a fifth of that for each view, and more behind operators that move more
# than a megabyte.
HOST_S = 1e-5


def add_s(elements: float) -> float:
    """Seconds of an addition."""
    return 1e-6 + 2e-9 * elements


def reduce_s(size: float) -> float:
    """Seconds of an all-reduce among two ranks."""
    return 5e-5 + 1e-9 * size


def slower(added: float) -> float:
    """What a launch takes more behind an addition of so many elements: at 16 MB as much again, and
    so on, which is a line in logarithms."""
    # Two operands and a result.
    return float(np.log(max(1.0, 12 * added / 1e6)) / np.log(16))


# Elements that each rank adds up before and behind an all-reduce of so many bytes, by plan.
PLANS = {"even": ((4e6, 4e6), 8e5), "uneven": ((7e6, 1e6), 4e5)}


def made_up_operators(factor: float = 1.0) -> xr.Dataset:
    """Two models and two plans; judged iterations take `factor` of what is to be expected."""
    elements, sizes = np.geomspace(10, 1e8, 200), np.geomspace(64, 1e7, 200)
    points = [(1, "add/2", size, add_s(size)) for size in elements]
    points += [(1, "launch", size, 3e-5) for size in (1e2, 1e3, 1e6)]
    points += [(1, "launch", 1e6 * 16**power, 3e-5 * (1 + power)) for power in (1, 2)]
    points += [(1, "launch of a view", 0.0, 6e-6)]
    points += [(2, "all_reduce", size, reduce_s(size)) for size in sizes]
    cases: list[dict[str, object]] = []
    calls: list[dict[str, object]] = []

    def case(role: str, model: str, seconds: float, plan: str = "") -> None:
        """Of one pass, as far as passes are asked for."""
        one = {"role": role, "model": model, "plan": plan, "tables": 0}
        ranks = 2 if model == "dlrm" else 1
        cases.append({**one, "ranks": ranks, "time_s": seconds})

    def call(rank: int, segment: int, operator: str, size: tuple[float, ...], times: int) -> None:
        where = {"case": len(cases) - 1, "rank": rank, "segment": segment}
        calls.append({**where, "operator": operator, "size": size, "calls": times, "traced_s": 1.0})

    for model, number in (("small", 1e4), ("large", 1e6)):
        for role, count, times in (("fewer samples", 20.0, 1.0), ("judged", number, factor)):
            host_s = HOST_S * (30 + 20 * slower(count))
            case(role, model, times * (host_s + 20 * add_s(count)))
            call(0, 0, "host", (), 24)
            call(0, 0, "host of a view", (), 30)
            call(0, 0, "add/2", (count,), 20)
    # The first pass looks something up and tells nothing; the collective is in no pass.
    case("fewer samples", "dlrm", 5 * HOST_S + 5 * add_s(20.0))
    call(0, 0, "index_select", (1e6, 48.0, 1e5), 1)
    call(0, 1, "host", (), 5)
    call(0, 1, "add/2", (20.0,), 5)
    call(0, 1, "all_reduce", (8e5,), 1)
    for plan, (added, size) in PLANS.items():
        passes = 2 * (add_s(max(added)) + HOST_S * (1 + slower(max(added))))
        case("judged", "dlrm", factor * (passes + reduce_s(size)), plan)
        for rank, segment in product((0, 1), (0, 1)):
            # As much as one that is no view.
            call(rank, segment, "host of a view", (), 5)
            call(rank, segment, "add/2", (added[rank],), 1)
            if segment == 0:
                call(rank, segment, "all_reduce", (size,), 1)
    return _dataset(points, pd.DataFrame(cases), pd.DataFrame(calls))


def _dataset(
    points: list[tuple[int, str, float, float]], cases: pd.DataFrame, calls: pd.DataFrame
) -> xr.Dataset:
    times = cases.pop("time_s").to_numpy()
    # Of one rank, behind one that looks something up, if there is any.
    looking = cases.index.isin(calls.case[calls.operator == "index_select"])
    passes = np.where(looking[:, None], [[1.0, np.nan]], np.nan)
    passes[np.arange(len(cases)), looking.astype(int)] = times
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
            "pass_time_s": (("case", "iteration", "rank", "pass"), passes[:, None, None]),
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
