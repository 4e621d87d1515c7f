"""A GPU's figures: every operator is a point, lines are predicted, points measured."""

import holoviews as hv
import hvplot
import numpy as np
import pytest
from drawing import drawn

from repro.figures.predicted.gpu import by_attention, decoding_times, operator_ratios
from repro.predict.calibration.measured_gpu import decoding_errors, operator_errors
from repro.results.measured import read_kept


@pytest.fixture(params=["bokeh", "matplotlib"], autouse=True)
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def test_every_operator_is_a_point(backend: str) -> None:
    errors = operator_errors(read_kept("gpu_operators"))
    figure = operator_ratios(errors)
    points = [len(one) for one in figure if isinstance(one, hv.Scatter)]
    assert len(points) == 6 and sum(points) == len(errors)
    drawn(figure, backend)


def test_lines_are_predicted_and_points_measured(backend: str) -> None:
    errors = decoding_errors(read_kept("gpu_decoding"))
    for panel, (_, rows) in zip(
        decoding_times(errors), errors.groupby("phase", sort=False), strict=True
    ):
        for kind, column in ((hv.Curve, "predicted_ms"), (hv.Scatter, "measured_ms")):
            shown = [one.dimension_values(1) for one in panel if type(one) is kind]
            assert sorted(np.concatenate(shown)) == sorted(rows[column])
    drawn(decoding_times(errors), backend)


def test_what_had_no_memory_is_not_shown() -> None:
    time, memory = by_attention(read_kept("gpu_attention"))
    assert [len(one) for one in time if isinstance(one, hv.Curve)] == [4, 5]
    assert [len(one) for one in memory if isinstance(one, hv.Curve)] == [4, 5]
