"""A GPU's figures: every operator, pass and part of one is a point."""

import holoviews as hv
import hvplot
import numpy as np
import pytest
from drawing import drawn

from repro.figures.predicted.gpu import (
    by_attention,
    clocks,
    operator_ratios,
    part_ratios,
    pass_ratios,
)
from repro.predict.calibration.measured_gpu import (
    decoding_errors,
    decoding_parts,
    operator_errors,
)
from repro.predict.operators.trace_replay import iterations
from repro.results.measured import by_gpu, read_all_kept, read_kept

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"], autouse=True)
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def test_every_operator_is_a_point(backend: str) -> None:
    errors = by_gpu(read_all_kept("gpu_operators"), operator_errors)
    figure = operator_ratios(errors)
    for panel, (_, found) in zip(figure, errors.groupby("gpu"), strict=True):
        points = [len(one) for one in panel if isinstance(one, hv.Scatter)]
        assert len(points) == 6 and sum(points) == len(found)
    drawn(figure, backend)


def test_every_pass_and_every_part_of_one_is_a_point(backend: str) -> None:
    errors = by_gpu(read_all_kept("gpu_decoding"), decoding_errors)
    parts = by_gpu(read_all_kept("gpu_decoding_parts"), decoding_parts)
    for figure, rows, panel_of, series in (
        (pass_ratios(errors), errors, "model", 4),
        (part_ratios(parts), parts, "phase", 4),
    ):
        for panel, (_, found) in zip(
            figure, rows.groupby(["gpu", panel_of], sort=False), strict=True
        ):
            points = [len(one) for one in panel if isinstance(one, hv.Scatter)]
            assert len(points) == series and sum(points) == len(found)
        drawn(figure, backend)


def test_what_had_no_memory_is_not_shown() -> None:
    for gpu, fit in (("h200-sxm-141gb", [4, 5]), ("h100-sxm-80gb", [3, 5])):
        for panel in by_attention(read_kept("gpu_attention", gpu)):
            assert [len(one) for one in panel if isinstance(one, hv.Curve)] == fit


def test_both_clocks_of_an_iteration_are_drawn_over_what_it_took(backend: str) -> None:
    replayed = by_gpu(read_all_kept("gpu_iterations"), iterations)
    figure = clocks(replayed)
    for panel, (_, found) in zip(figure, replayed.groupby("gpu"), strict=True):
        host, gpu, both = (one.dimension_values(1) for one in panel if isinstance(one, hv.Scatter))
        np.testing.assert_allclose(both, 1 + found.error_pct / 100)
        assert len(host) == len(found)
        # Neither clock alone is longer than both together.
        assert (np.maximum(host, gpu) <= both * (1 + 1e-9)).all()
    drawn(figure, backend)
