"""Microbenchmarks: a trace of one has the operator and the sizes that were asked for."""

import pytest
import torch

from repro.catalog.studies.operator_benchmarks import (
    BY_ELEMENTS,
    BY_ROWS,
    EMBEDDING_BAG,
    LOOKUPS,
    STRIDED,
    Sizes,
)
from repro.logs.operator_trace import read_cpu_trace
from repro.observe.operator_trace import trace_of
from repro.train.operators import prepared
from repro.train.timed import cpu_s

_LAYOUTS = ("nn", "nt", "tn")
# Sizes that differ, each at its place.
_SIZES: dict[str, Sizes] = {
    **{f"product {layout}": (10, 80, 640) for layout in _LAYOUTS},
    **{
        f"batched product {layout}": (10, 20, 80, 40)
        for layout in (*_LAYOUTS, "NT", "Tn", "tN", "nN")
    },
    **dict.fromkeys(BY_ROWS, (2560, 160)),
    **dict.fromkeys(LOOKUPS, (2560, 80, 500)),
    **{f"{name}/{count}": (5120,) for name, counts in BY_ELEMENTS.items() for count in counts},
    **dict.fromkeys(STRIDED, (5120,)),
    EMBEDDING_BAG: (10, 5.0, 80, 500),
}


@pytest.mark.parametrize("operator", _SIZES)
def test_a_trace_has_what_is_measured(operator: str) -> None:
    make, call = prepared(operator, _SIZES[operator])
    operands = make()
    with torch.no_grad():
        found = read_cpu_trace(trace_of(lambda: call(*operands)), "fp32")
    known = {one.operator: one for one in found if one.sizes}
    assert known[operator].sizes == _SIZES[operator]
    assert set(known[operator].precisions) == {"fp32"}


def test_a_call_takes_what_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("repro.train.timed.time.process_time", lambda: now[0])

    def call(milliseconds: float) -> None:
        now[0] += 1e-3 * milliseconds

    assert cpu_s(call, 3.0) == pytest.approx(3e-3)
    assert cpu_s(call, 0.1, total_s=1.0) == pytest.approx(1e-4)
