"""One GPU's figures: lines are predicted, points measured, and nothing is both."""

import holoviews as hv
import hvplot
import pytest
import xarray as xr
from drawing import drawn
from one_gpu_made_up import CLUSTER, made_up_measurements

from repro.catalog.models.papers import model
from repro.catalog.studies.selection import select
from repro.figures.predicted.one_gpu import peak_memory, time_per_sequence
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.results.metrics import phase_time_s
from repro.results.store import not_run

pytestmark = pytest.mark.slow

_MODELS = ("gpt2-medium", "bert-large", "t5-large", "gpt2-large")
_PHASES = ("forward compute", "backward compute", "optimizer")
_NOTHING = not_run({"cluster": "no GPU"})


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def predicted() -> xr.Dataset:
    return predict_experiment(select("one_gpu", "predicted"))


@pytest.fixture(scope="module")
def measured() -> xr.Dataset:
    return made_up_measurements()


def _values(element: hv.Element) -> dict[int, float]:
    frame = element.dframe()
    return dict(zip(frame.batch.astype(int), frame.value, strict=True))


def test_points_are_measured_and_lines_predicted(
    predicted: xr.Dataset, measured: xr.Dataset, backend: str
) -> None:
    figure = time_per_sequence(predicted, measured)
    assert len(list(figure)) == len(_MODELS)
    for panel, name in zip(figure, _MODELS, strict=True):
        for kind, results, word in (
            (hv.Curve, predicted, "predicted"),
            (hv.Scatter, measured, "measured"),
        ):
            elements = panel.traverse(lambda element: element, [kind])
            assert [element.label for element in elements] == [f"{p}, {word}" for p in _PHASES]
            for element, phase in zip(elements, _PHASES, strict=True):
                times = phase_time_s(results, phase).sel(model=name).squeeze().to_series()
                expected = {size: 1e3 * time / size for size, time in times.dropna().items()}
                assert _values(element) == pytest.approx(expected)
        assert panel.opts.get("plot").kwargs["title"] == model(name).label
    drawn(figure, backend)


def test_memory_has_all_predicted_points_and_the_limit(
    predicted: xr.Dataset, measured: xr.Dataset, backend: str
) -> None:
    figure = peak_memory(predicted, measured, CLUSTER.device)
    for panel, name in zip(figure, _MODELS, strict=True):
        (line,) = panel.traverse(lambda element: element, [hv.Curve])
        (points,) = panel.traverse(lambda element: element, [hv.Scatter])
        (limit,) = panel.traverse(lambda element: element, [hv.HLine])
        bytes_at = predicted["memory_bytes"].sel(model=name).squeeze().to_series()
        assert _values(line) == pytest.approx(((bytes_at - FRAMEWORK_BYTES) / 1e9).to_dict())
        taken = measured["peak_memory_bytes"].sel(model=name).squeeze().to_series().dropna()
        assert _values(points) == pytest.approx((taken / 1e9).to_dict())
        assert limit.data == pytest.approx(149.883621 - 2)
        assert panel.opts.get("plot").kwargs["title"] == model(name).label
    drawn(figure, backend)


def test_without_measurements_there_are_lines_only(predicted: xr.Dataset, backend: str) -> None:
    figures = (
        time_per_sequence(predicted, _NOTHING),
        peak_memory(predicted, _NOTHING, CLUSTER.device),
    )
    for figure in figures:
        assert figure.traverse(lambda element: element, [hv.Curve])
        assert not figure.traverse(lambda element: element, [hv.Scatter])
        drawn(figure, backend)


def test_without_a_prediction_the_reason_stands_in_the_figures_place(backend: str) -> None:
    for figure in (
        time_per_sequence(_NOTHING, _NOTHING),
        peak_memory(_NOTHING, _NOTHING, CLUSTER.device),
    ):
        (text,) = figure.traverse(lambda element: element, [hv.Text])
        assert text.data[2] == "not run here: cluster: no GPU"
