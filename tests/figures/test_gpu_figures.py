"""A GPU's figures: every operator is a point, lines are predicted, points measured."""

import holoviews as hv
import hvplot
import numpy as np
import pytest
from drawing import drawn

from repro.figures.predicted.gpu import by_attention, clocks, decoding_times, operator_ratios
from repro.predict.calibration.measured_gpu import decoding_errors, operator_errors
from repro.predict.operators.two_clocks import gpu_iterations
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


def test_lines_are_predicted_and_points_measured(backend: str) -> None:
    errors = by_gpu(read_all_kept("gpu_decoding"), decoding_errors)
    for panel, (_, rows) in zip(
        decoding_times(errors), errors.groupby(["gpu", "phase"], sort=False), strict=True
    ):
        for kind, column in ((hv.Curve, "predicted_ms"), (hv.Scatter, "measured_ms")):
            shown = [one.dimension_values(1) for one in panel if type(one) is kind]
            assert sorted(np.concatenate(shown)) == sorted(rows[column])
    drawn(decoding_times(errors), backend)


def test_what_had_no_memory_is_not_shown() -> None:
    for gpu, fit in (("h200-sxm-141gb", [4, 5]), ("h100-sxm-80gb", [3, 5])):
        for panel in by_attention(read_kept("gpu_attention", gpu)):
            assert [len(one) for one in panel if isinstance(one, hv.Curve)] == fit


def test_both_clocks_of_an_iteration_are_drawn_over_what_it_took(backend: str) -> None:
    iterations = by_gpu(read_all_kept("gpu_iterations"), gpu_iterations)
    figure = clocks(iterations)
    for panel, (_, found) in zip(figure, iterations.groupby("gpu"), strict=True):
        host, gpu, both = (one.dimension_values(1) for one in panel if isinstance(one, hv.Scatter))
        np.testing.assert_allclose(both, 1 + found.error_pct / 100)
        assert len(host) == len(found)
        # Neither clock alone is longer than both together.
        assert (np.maximum(host, gpu) <= both * (1 + 1e-9)).all()
    drawn(figure, backend)
