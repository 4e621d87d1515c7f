"""Operators near measured ones take what those took; others what their costs say."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.calibration.operator_fitting import cross_validate, fit_costs
from repro.predict.operators.measured import (
    KINDS,
    costs_alone_s,
    half_width,
    kind_of,
    measured_rows,
    operator_costs,
    operator_s,
    product_alone_s,
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
    errors = cross_validate(kind, rows)
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


def _busbw_GBps(name: str, dtype: str, ranks: int) -> float:
    """Of the largest all-reduce that was measured."""
    rows = measured_rows("nccl", name)
    rows = rows[(rows.collective == "all_reduce") & (rows.dtype == dtype) & (rows.ranks == ranks)]
    largest = rows.loc[rows.size_bytes.idxmax()]
    return float(2 * (ranks - 1) / ranks * largest.size_bytes / largest.time_us * 1e-3)


def test_published_sums_in_half_precision_outrun_rings_where_switches_can_add() -> None:
    """Bytes are not added up in switches, so int8 is a ring's."""
    gained = {
        (name, ranks): _busbw_GBps(name, "fp16", ranks) / _busbw_GBps(name, "int8", ranks)
        for name in ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb")
        for ranks in (2, 4, 8)
    }
    most = gained.pop(("h100-sxm-80gb", 8))
    assert most > 1.25 and _busbw_GBps("h100-sxm-80gb", "fp16", 8) > 0.98 * 450
    assert gained.pop(("b200-sxm-180gb", 8)) > 1.09
    assert max(gained.values()) < 1.07


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_switches_add_up_a_domain_of_72_too(dtype: str) -> None:
    """What they reach of the links, times 2 (n - 1) over n + 1; a ring at most the links' rate."""
    rows = pd.DataFrame({"size_bytes": [2**33], "ranks": 72, "collective": "all_reduce"})
    seconds = float(costs_alone_s("nccl", rows, (dtype, "all_reduce"), gpu("gb200"))[0])
    busbw = 2 * 71 / 72 * 2**33 / seconds
    costs = operator_costs("nccl", gpu("gb200"), dtype, "all_reduce").costs
    if dtype == "fp16":
        assert busbw == pytest.approx(900e9 * costs["switch_efficiency"] * 142 / 73, rel=0.02)
    else:
        assert "switch_efficiency" not in costs and busbw < 900e9


def test_tables_are_known_by_their_columns() -> None:
    for kind in KINDS:
        assert kind_of(measured_rows(kind, "a100-sxm-80gb").columns) == kind
    assert kind_of(pd.Index(["gpu", "layers", "iteration_time_s"])) is None


def test_an_unknown_precision_names_the_known_ones() -> None:
    with pytest.raises(ReproError, match=r"no gemm was measured in 'int4'; known are bf16, fp8"):
        operator_costs("gemm", gpu("h100-sxm-80gb"), "int4")


@pytest.mark.parametrize("device", ["h100-sxm-80gb", "h200-sxm-141gb", "b200-sxm-180gb"])
def test_no_product_alone_outruns_its_operations_or_its_bytes(device: str) -> None:
    """Also where the cast that products in fp8 were published with takes most of the time."""
    on, sizes = gpu(device), 2.0 ** np.arange(5, 16, 2)
    m, n, k = (axis.ravel() for axis in np.meshgrid(sizes, sizes, sizes))
    rows = pd.DataFrame({"m": m, "n": n, "k": k})
    least = np.maximum(
        2 * m * n * k / on.fp8_flops, (k * (m + n) + 2 * m * n) / (on.memory_gbytes_per_s * 1e9)
    )
    assert (product_alone_s(rows, "fp8", on) > least).all()
