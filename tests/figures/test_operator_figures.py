"""Figures of operators and iterations show what they are given."""

import holoviews as hv
import numpy as np
import pytest
import xarray as xr
from made_up_operators import made_up_operators

from repro.figures.experiments.operators import element_times, product_rates, replayed_iterations
from repro.results.store import not_run

pytestmark = pytest.mark.slow


def test_every_judged_iteration_is_a_mark() -> None:
    figure = replayed_iterations(made_up_operators())
    marks = [len(one) for one in figure.traverse(lambda one: one, [hv.Scatter])]
    # Two models; those on fewer samples are not judged.
    assert sum(marks) == 2


def test_element_wise_work_is_a_line_per_operator() -> None:
    lines = element_times(made_up_operators()).traverse(lambda one: one, [hv.Curve])
    assert len(lines) == 1 and len(lines[0]) == 200


def test_rates_of_products_are_operations_over_time() -> None:
    measured = xr.Dataset(
        {
            "benchmark_operator": ("benchmark", [0, 0]),
            "benchmark_size": (("benchmark", "axis"), [[10, 20, 30, np.nan], [40, 50, 60, np.nan]]),
            "benchmark_time_s": (("benchmark", "repeat"), [[1e-6], [1e-5]]),
            "iteration_time_s": ("case", []),
        },
        {"operator": ["product nt fp32"]},
    )
    (marks,) = product_rates(measured).traverse(lambda one: one, [hv.Scatter])
    # 12,000 operations in 1 us, 240,000 in 10 us.
    assert marks.dimension_values("gflops") == pytest.approx([12.0, 24.0])


def test_nothing_measured_says_why() -> None:
    for draw in (element_times, product_rates, replayed_iterations):
        texts = draw(not_run({"operators": "nobody tried"})).traverse(lambda one: one, [hv.Text])
        assert "nobody tried" in str(texts[0].data)
