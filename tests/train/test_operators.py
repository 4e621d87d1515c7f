"""Microbenchmarks are of the operators, and of the sizes, that a trace of them shows."""

import pytest
import torch

from repro.catalog.studies.operators import read_operator_study
from repro.logs.operator_trace import HOST, read_operator_trace
from repro.observe.operator_trace import trace_of
from repro.train.operators import operator_s, prepared

_GRIDS = read_operator_study().profile("ci").grids()


@pytest.mark.parametrize("operator", _GRIDS)
def test_a_trace_has_what_is_measured(operator: str) -> None:
    # Of sizes that differ, each at its place.
    sizes = tuple(axis[min(1, len(axis) - 1)] for axis in _GRIDS[operator])
    make, call = prepared(operator, sizes)
    operands = make()
    with torch.no_grad():
        found = read_operator_trace(trace_of(lambda: call(*operands)))
    known = {one.operator: one.sizes for one in found if one.operator != HOST and one.sizes}
    assert known[operator] == sizes


def test_more_work_takes_longer() -> None:
    times = [operator_s("product nn", (side, side, side), 1e6, 1e6) for side in (10, 640)]
    # 262,144 times the operations.
    assert times[1] > 100 * times[0] > 0
