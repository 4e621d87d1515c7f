"""Dataset of a device's measured iterations and the operators that predict them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from repro.catalog.studies.operator_benchmarks import Sizes
from repro.catalog.studies.operators import Grids
from repro.logs.operator_trace import PARTS, TracedCall
from repro.observe.nic import FloatArray

_MOST_AXES = 4
# One call of an operator: its name, precisions and sizes.
Point = tuple[str, tuple[str, ...], Sizes]


@dataclass(frozen=True)
class Case:
    """An iteration: its times, and its calls.

    `samples` are the micro batch; `tables` is the number of a random set. `parts_s` (iteration,
    part) are times of `PARTS`; empty if only the iteration was timed.
    """

    model: str
    samples: int
    role: str
    times_s: list[float]
    calls: list[TracedCall]
    tables: int = 0
    parts_s: list[list[float]] = field(default_factory=list)


def operator_points(grids: Grids, cases: Sequence[Case]) -> list[Point]:
    """Return the sizes of the grids at which the operators of these iterations are measured."""
    wanted = dict.fromkeys(
        (one.operator, one.precisions) for case in cases for one in case.calls if one.sizes
    )
    return [
        (operator, precisions, sizes)
        for operator, precisions in wanted
        for sizes in product(*grids.grid(operator, precisions[0]))
    ]


def iteration_dataset(cases: Sequence[Case], times: Mapping[Point, Sequence[float]]) -> xr.Dataset:
    """Return cases, and times of operators by repeat, as a dataset.

    Returns
    -------
    Dataset
        `iteration_time_s` (case, iteration) and `part_time_s` (case, iteration, part), NaN where
        parts were not timed; `benchmark_time_s` (benchmark, repeat) of operators at
        `benchmark_size`; and every case's `call`s in order. Both have the number of their name,
        with precisions, in `operator`.
    """
    calls = [(number, one) for number, case in enumerate(cases) for one in case.calls]
    names = [" ".join((one.operator, *one.precisions)) for _, one in calls]
    measured = [" ".join((operator, *precisions)) for operator, precisions, _ in times]
    operators, numbers = np.unique([*names, *measured], return_inverse=True)
    iterations = max(len(case.times_s) for case in cases)
    unknown = np.full((iterations, len(PARTS)), np.nan)
    parts_s = np.array([case.parts_s or unknown for case in cases])
    variables: dict[str, Any] = {
        "iteration_time_s": (
            ("case", "iteration"),
            np.array([case.times_s for case in cases]),
            {"long_name": "iteration time", "units": "s"},
        ),
        "part_time_s": (
            ("case", "iteration", "part"),
            parts_s,
            {"long_name": "time of a part of an iteration", "units": "s"},
        ),
        "benchmark_operator": ("benchmark", numbers[len(calls) :].astype(np.int16)),
        "benchmark_size": (("benchmark", "axis"), _padded([sizes for _, _, sizes in times])),
        "benchmark_time_s": (
            ("benchmark", "repeat"),
            np.array(list(times.values())),
            {"long_name": "time of a call", "units": "s"},
        ),
        "call_case": ("call", np.array([number for number, _ in calls], dtype=np.int16)),
        "call_part": ("call", np.array([PARTS.index(one.part) for _, one in calls], np.int8)),
        "call_operator": ("call", numbers[: len(calls)].astype(np.int16)),
        "call_size": (("call", "axis"), _padded([one.sizes for _, one in calls])),
        "call_launches": ("call", np.array([one.launches for _, one in calls], np.int16)),
        "call_busy_s": (
            "call",
            np.array([one.busy_s for _, one in calls], np.float32),
            {"long_name": "time on the device in the trace", "units": "s"},
        ),
    }
    for name in ("model", "samples", "tables", "role"):
        variables[f"case_{name}"] = ("case", np.array([getattr(case, name) for case in cases]))
    return xr.Dataset(variables, {"part": list(PARTS), "operator": operators})


def _padded(sizes: Sequence[Sizes]) -> FloatArray:
    """Return sizes of any number of axes, with NaN for axes that an operator lacks."""
    table = np.full((len(sizes), _MOST_AXES), np.nan)
    for row, given in zip(table, sizes, strict=True):
        row[: len(given)] = given
    return table
