"""The interval of a prediction, where it can be told by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
from examples import IDEAL, rows

from repro.catalog.systems.clusters import cluster
from repro.predict.calibration.fit import residuals_of
from repro.predict.calibration.interval import ALONE, BETWEEN_NODES, TENSOR_PARALLEL, half_width
from repro.predict.parameters import Calibration, Residuals, calibration
from repro.predict.workload import Array, Plan

_DGX = cluster("dgx-a100")
# Launches are all that takes time: it goes with the one parameter.
_LAUNCHES = IDEAL.model_copy(update={"host_layer_s": 10.0})
_RESIDUALS = {
    ALONE: Residuals(rows=9, mape_pct=4.0, half_width=0.1),
    TENSOR_PARALLEL: Residuals(rows=9, mape_pct=8.0, half_width=0.2),
    BETWEEN_NODES: Residuals(rows=9, mape_pct=9.0, half_width=0.3),
}


_ONE_NODE = Plan(global_batch_size=8, tensor_parallel=[1, 2])


def _widths(fitted: Sequence[str], variance: float, plan: Plan = _ONE_NODE) -> Array:
    shipped = calibration(_DGX.calibration)
    calibrated: Calibration = shipped.model_copy(
        update={
            "parameters": _LAUNCHES,
            "fitted": tuple(fitted),
            "covariance": ((variance,),),
            "residuals": _RESIDUALS,
        }
    )
    return half_width(rows(plan), _DGX, calibrated)


def test_residuals_are_those_of_the_regime() -> None:
    assert _widths(["host_layer_s"], 0.0) == pytest.approx([0.1, 0.2])


def test_runs_between_nodes_have_residuals_of_their_own() -> None:
    two_sizes = Plan(global_batch_size=16, tensor_parallel=2, data_parallel=[4, 8])
    assert _widths(["host_layer_s"], 0.0, two_sizes) == pytest.approx([0.2, 0.3])


def test_of_few_groups_the_next_one_may_differ_more() -> None:
    """Student's t of two degrees of freedom is 2.92 where a normal distribution has 1.645."""
    errors = np.linspace(-0.1, 0.1, 101)
    rows_alone, three_groups = residuals_of(errors), residuals_of(errors, groups=3)
    assert rows_alone.half_width == pytest.approx(0.09)
    assert three_groups.half_width == pytest.approx(0.09 * 2.920 / 1.645, rel=1e-3)
    assert three_groups.mape_pct == rows_alone.mape_pct


def test_what_calibration_leaves_open_adds_in_quadrature() -> None:
    # 5 % and 95 % of a normal distribution are 1.645 standard deviations away.
    expected = np.hypot([0.1, 0.2], 1.645 * 0.3)
    assert _widths(["host_layer_s"], 0.3**2) == pytest.approx(expected, rel=1e-3)


def test_what_takes_no_time_adds_nothing() -> None:
    assert _widths(["hop_s"], 1.0) == pytest.approx([0.1, 0.2])
