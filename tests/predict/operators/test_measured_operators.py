"""Operators near measured ones take what those took; others what their costs say."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.gpus import gpu
from repro.errors import ReproError
from repro.predict.calibration.operator_fitting import fit_costs, held_out_errors
from repro.predict.operators.measured import (
    KINDS,
    costs_alone_s,
    half_width,
    kind_of,
    measured_rows,
    operator_costs,
    operator_s,
    rates,
    read_operators,
)


def test_each_kind_was_measured_on_three_generations() -> None:
    for kind in KINDS:
        found = {gpu(one.gpu).generation for one in read_operators() if one.kind == kind}
        assert found == {"ampere", "hopper", "blackwell"}


@pytest.mark.parametrize(
    ("kind", "most_pct"), [("gemm", 7.5), ("attention_prefill", 9.5), ("attention_decode", 9.5)]
)
def test_shapes_that_no_fit_has_seen_are_met(kind: str, most_pct: float) -> None:
    rows = measured_rows(kind, "h100-sxm-80gb")
    rows = rows[rows.dtype == "bf16"]
    errors = held_out_errors(kind, rows)
    found = operator_costs(kind, gpu("h100-sxm-80gb"), "bf16")
    assert 100 * np.abs(np.expm1(errors)).mean() == pytest.approx(found.held_out_mape_pct, rel=0.02)
    assert found.held_out_mape_pct < most_pct
    assert 0.85 < (np.abs(errors) <= found.half_width).mean() < 0.95


def test_a_fit_finds_the_costs_that_made_the_rows() -> None:
    rows = measured_rows("gemm", "a100-sxm-80gb").sample(200, random_state=0)
    device = gpu("a100-sxm-80gb")
    made = operator_costs("gemm", device, "bf16")
    exact = rows.assign(time_us=1e6 * costs_alone_s("gemm", rows, ("bf16",), device))
    found = KINDS["gemm"].costs(**fit_costs("gemm", exact))
    again = KINDS["gemm"].time_s(rows, "bf16", rates(device, "gemm", "bf16"), found)
    assert again * 1e6 == pytest.approx(exact.time_us.to_numpy(), rel=0.02)
    assert made.costs["efficiency"] == pytest.approx(found.model_dump()["efficiency"], rel=0.1)


def test_measured_shapes_are_met_closely_and_data_sheets_scale_the_rest() -> None:
    rows = measured_rows("gemm", "h100-sxm-80gb").head(50)
    missed = operator_s("gemm", rows) * 1e6 / rows.time_us.to_numpy() - 1
    assert np.abs(missed).mean() < 0.02
    # An H200 has the same multiprocessors and faster memory.
    other = operator_s("gemm", rows.assign(gpu="h200_sxm"))
    assert (other <= 1.0001 * operator_s("gemm", rows)).all()
    assert (half_width("gemm", rows.assign(gpu="h200_sxm")) > half_width("gemm", rows)).all()


def test_tables_are_known_by_their_columns() -> None:
    for kind in KINDS:
        assert kind_of(measured_rows(kind, "a100-sxm-80gb").columns) == kind
    assert kind_of(pd.Index(["gpu", "layers", "iteration_time_s"])) is None


def test_an_unknown_precision_names_the_known_ones() -> None:
    with pytest.raises(ReproError, match=r"no gemm was measured in 'int4'; known are bf16, fp8"):
        operator_costs("gemm", gpu("h100-sxm-80gb"), "int4")
