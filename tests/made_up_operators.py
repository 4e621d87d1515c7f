"""A made-up CPU: times of its operators, and iterations that follow from them."""

import numpy as np
import xarray as xr

from repro.experiments.machine.iterations import Case, iteration_dataset
from repro.logs.operator_trace import PARTS, TracedCall
from repro.predict.operators.trace_replay import FEWER, JUDGED

# An addition takes 1 us and 2 ns an element; to begin a call takes the host 10 us.
HOST_S, CALLS = 1e-5, 20
ELEMENTS = {"small": 1e4, "large": 1e6}


def add_s(elements: float) -> float:
    """Return seconds of an addition."""
    return 1e-6 + 2e-9 * elements


def made_up_operators(factor: float = 1.0) -> xr.Dataset:
    """Return two models; judged iterations take `factor` times what they should."""
    cases = []
    for model, elements in ELEMENTS.items():
        for role, samples, count, times in ((FEWER, 1, 20.0, 1.0), (JUDGED, 4, elements, factor)):
            call = TracedCall(PARTS[0], "add/2", (count,), ("fp32",), 1, add_s(count))
            time_s = times * CALLS * (HOST_S + add_s(count))
            cases.append(
                Case(model, samples, role, [0.9 * time_s, time_s, 2 * time_s], [call] * 20)
            )
    sizes = np.geomspace(10, 1e8, 200)
    times_s = {("add/2", ("fp32",), (size,)): add_s(size) * np.array([1, 1, 5]) for size in sizes}
    return iteration_dataset(cases, times_s).assign_attrs(source="testbed")
