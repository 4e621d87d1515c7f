"""What was measured of single operators and of iterations on this machine, and its dataset."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr
from pandas.api.types import is_numeric_dtype

from repro.catalog.studies.operator_benchmarks import Sizes
from repro.logs.operator_trace import TracedOperator
from repro.observe.nic import FloatArray

# One operator at one of its sizes.
Point = tuple[str, Sizes]
_MOST_AXES = 4
_DESCRIBED = ("model", "role", "tables", "plan", "ranks")
_LAPS = ("case", "iteration", "rank", "pass")
# Of a collective's calls, as of ranks with cores of their own: threads that share cores wait for
# one another in up to half of them, for a slice of the scheduler, ten times what others take.
UNDISTURBED = 0.25
# Iterations of a turn, which what wanders disturbs together.
IN_A_ROW = 3
_RESAMPLES = 200
_UNITS = {
    "operator_time_s": ("CPU time of a call, of collectives time", "s"),
    "iteration_time_s": ("iteration time", "s"),
    "iteration_time_drawn_s": ("iteration time of turns drawn again", "s"),
    "pass_time_s": ("CPU time of what is computed between collectives", "s"),
    "collective_time_s": ("time of a collective, with the waiting for other ranks", "s"),
    "call_traced_s": ("time of all calls in the trace, with the profiler's own", "s"),
}


@dataclass(frozen=True)
class Case:
    """One iteration, measured while so many `ranks` worked.

    `role` is whether it is judged or on fewer samples; `tables` the number of a random
    set. `passes_s` (iteration, rank, pass) is CPU time, `collectives_s` (iteration, rank,
    collective) time; `operators` has an entry a rank that takes part.
    """

    model: str
    role: str
    ranks: int
    passes_s: FloatArray
    collectives_s: FloatArray
    operators: list[list[TracedOperator]]
    tables: int = 0
    plan: str = ""

    @property
    def time_s(self) -> float:
        """Seconds of an iteration, as if each rank had a core of its own.

        A pass takes what it takes the slowest rank, by medians, as the host of a virtual machine
        disturbs some. A collective begins when the last rank comes, for which it is shortest, and
        takes what it takes when nothing delays it.
        """
        return _time_s(self.passes_s, self.collectives_s)

    @property
    def drawn_s(self) -> FloatArray:
        """`time_s` of turns drawn again from these (draw), of cases with as many turns the same
        ones; one less than these, so that they differ as much as other turns would."""
        turns = len(self.passes_s) // IN_A_ROW
        drawn = np.random.default_rng(0).integers(turns, size=(_RESAMPLES, max(turns - 1, 1), 1))
        iterations = (IN_A_ROW * drawn + np.arange(IN_A_ROW)).reshape(_RESAMPLES, -1)
        return np.array(
            [_time_s(self.passes_s[again], self.collectives_s[again]) for again in iterations]
        )


def _time_s(passes_s: FloatArray, collectives_s: FloatArray) -> float:
    slowest = np.median(passes_s, axis=0).max(axis=0)
    undisturbed = np.quantile(collectives_s.min(axis=1), UNDISTURBED, axis=0)
    return float(slowest.sum() + undisturbed.sum())


@dataclass(frozen=True)
class Found:
    """What a set of ranks measured: operators' times by repeat, and iterations."""

    ranks: int
    operators: dict[Point, list[float]]
    cases: list[Case]


def operator_dataset(found: list[Found]) -> xr.Dataset:
    """Of several sets of ranks one (`repro.experiments.machine.operators.measure_operators`)."""
    points = [(one.ranks, *point, times) for one in found for point, times in one.operators.items()]
    cases = [case for one in found for case in one.cases]
    calls = pd.DataFrame(
        [
            {"case": number, "rank": rank, **vars(row)}
            for number, case in enumerate(cases)
            for rank, rows in enumerate(case.operators)
            for row in rows
        ]
    )
    described = pd.DataFrame({name: [getattr(case, name) for case in cases] for name in _DESCRIBED})
    dataset = xr.Dataset(
        {
            "operator_ranks": ("benchmark", np.array([ranks for ranks, *_ in points])),
            "operator_name": ("benchmark", np.array([name for _, name, _, _ in points], dtype=str)),
            "operator_size": (("benchmark", "axis"), padded([sizes for *_, sizes, _ in points])),
            "operator_time_s": (("benchmark", "repeat"), np.array([times for *_, times in points])),
            "iteration_time_s": ("case", np.array([case.time_s for case in cases])),
            "iteration_time_drawn_s": (
                ("case", "draw"),
                np.array([case.drawn_s for case in cases]),
            ),
            "pass_time_s": (_LAPS, _joined([case.passes_s for case in cases])),
            "collective_time_s": (
                (*_LAPS[:-1], "collective"),
                _joined([case.collectives_s for case in cases]),
            ),
            "call_size": (("call", "axis"), padded(list(calls.pop("sizes")))),
            **{f"case_{name}": ("case", _column(described[name])) for name in described},
            **{f"call_{name}": ("call", _column(calls[name])) for name in calls},
        }
    )
    for name, (long_name, units) in _UNITS.items():
        dataset[name].attrs = {"long_name": long_name, "units": units}
    return dataset


def _column(values: pd.Series) -> np.ndarray:
    return values.to_numpy(dtype=None if is_numeric_dtype(values) else str)


def _joined(arrays: list[FloatArray]) -> FloatArray:
    """Arrays of different lengths as one, with NaN for what is not there."""
    joined = np.full((len(arrays), *np.max([one.shape for one in arrays], axis=0)), np.nan)
    for whole, one in zip(joined, arrays, strict=True):
        whole[tuple(map(slice, one.shape))] = one
    return joined


def padded(sizes: list[Sizes]) -> FloatArray:
    """Sizes of any number of axes, with NaN for those that are not there."""
    table = np.full((len(sizes), _MOST_AXES), np.nan)
    for row, given in zip(table, sizes, strict=True):
        row[: len(given)] = given
    return table
