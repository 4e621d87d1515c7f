"""Figures of operators and iterations show what they are given."""

import holoviews as hv
import pytest
import xarray as xr
from made_up_operators import made_up_operators

from repro.figures.studies.operators import element_times, product_rates, retimed_iterations
from repro.results.store import not_run

pytestmark = pytest.mark.slow


def test_every_judged_iteration_is_a_mark() -> None:
    figure = retimed_iterations(made_up_operators())
    marks = [len(one) for one in figure.traverse(lambda one: one, [hv.Scatter])]
    # Two models and two plans; those on fewer samples are not judged.
    assert sum(marks) == 4


def test_element_wise_work_is_a_line_an_operator() -> None:
    lines = element_times(made_up_operators()).traverse(lambda one: one, [hv.Curve])
    assert len(lines) == 1 and len(lines[0]) == 200


def test_what_several_ranks_measured_is_no_line_of_one_thread() -> None:
    results = made_up_operators()
    several = results.assign(operator_ranks=xr.full_like(results.operator_ranks, 2))
    both = xr.concat([results, several], "benchmark", data_vars="minimal")
    (line,) = element_times(both).traverse(lambda one: one, [hv.Curve])
    assert len(line) == 200


def test_nothing_measured_says_why() -> None:
    for draw in (element_times, product_rates, retimed_iterations):
        texts = draw(not_run({"operators": "nobody tried"})).traverse(lambda one: one, [hv.Text])
        assert "nobody tried" in str(texts[0].data)
