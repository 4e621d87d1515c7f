"""Figures 5 to 7: bars add up, cells without memory say so, and all draw on both backends."""

import holoviews as hv
import hvplot
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from drawing import drawn
from made_up import made_up_pipeline

from repro.catalog.studies.selection import select
from repro.figures.experiments.batches import batch_heatmap, share_by_micro_batch
from repro.figures.experiments.every import figures_of
from repro.figures.experiments.pipelines import (
    node_utilisation,
    split_breakdown,
    timeline,
    timer_breakdown,
)
from repro.figures.panels import HEIGHT, WIDTH
from repro.figures.predicted.larger import larger_scale
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.explore.jobs.larger import predict_larger
from repro.results.metrics import iteration_time_s
from repro.results.schema import coordinates
from repro.results.store import not_run

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def pipelines() -> xr.Dataset:
    return predict_experiment(select("model_parallelism", "predicted"))


@pytest.mark.parametrize("reading", [timer_breakdown, split_breakdown])
def test_bars_add_up_to_the_iteration(pipelines: xr.Dataset, reading: object, backend: str) -> None:
    panels = list(reading(pipelines))  # type: ignore[operator]
    assert len(panels) == 4
    expected = 1e3 * iteration_time_s(pipelines).squeeze("source")
    for panel, name in zip(panels, pipelines["model"].values, strict=True):
        bars = panel.traverse(lambda element: element, [hv.Rectangles])
        sums = pd.concat([bar.dframe() for bar in bars]).groupby("run")["value"].sum()
        assert sums["8 TCP/IP"] == pytest.approx(
            float(expected.sel(model=name, gpus=8, protocol="tcp")), rel=1e-6
        )
        drawn(panel, backend)


def test_nodes_have_a_bar_each(pipelines: xr.Dataset, backend: str) -> None:
    panel = next(iter(node_utilisation(pipelines)))
    bars = panel.traverse(lambda element: element, [hv.Rectangles])
    assert {bar.label: len(bar) for bar in bars} == {"RDMA": 4, "IPoIB": 4, "TCP/IP": 4}
    drawn(panel, backend)


def test_protocols_that_are_none_of_the_papers_are_drawn_too(
    pipelines: xr.Dataset, backend: str
) -> None:
    one = pipelines.isel(protocol=[0]).assign_coords(protocol=["roce"])
    drawn(node_utilisation(one), backend)


def test_a_timeline_shows_what_each_stage_does(backend: str) -> None:
    figure = timeline(made_up_pipeline(coordinates("bert-large", "rdma", 2)))
    boxes = figure.traverse(lambda element: element, [hv.Rectangles])
    found = {element.label: len(element) for element in boxes}
    # One iteration: two stages, two calls and two message ends each.
    assert found == {"compute": 2, "wait": 4, "message": 4}
    drawn(figure, backend)


def test_cells_without_memory_say_so(backend: str) -> None:
    results = predict_experiment(select("data_batches", "predicted"))
    figure = batch_heatmap(results)
    labels = [
        word
        for element in figure.traverse(lambda element: element, [hv.Labels])
        if element.label != "published"
        for word in element.dimension_values("label")
    ]
    assert labels.count("OOM") == int(results["out_of_memory"].sum())
    assert len(labels) == results["out_of_memory"].size
    # What is stated of 96 sequences stands between 64 and 128.
    (stated,) = (
        element
        for element in figure.traverse(lambda element: element, [hv.Labels])
        if element.label == "published"
    )
    assert stated.dimension_values(2).tolist() == ["last of GPT-2-Large"]
    batches = sorted(results["global_batch_size"].values.tolist())
    assert batches.index(64) < stated.dimension_values(0)[0] < batches.index(128)
    drawn(figure, backend)


def test_micro_batches_have_a_line_per_model(backend: str) -> None:
    results = predict_experiment(select("micro_batches", "predicted", "rdma", profile="predicted"))
    figure = share_by_micro_batch(results)
    curves = figure.traverse(lambda element: element, [hv.Curve])
    assert [curve.label for curve in curves] == [
        "GPT-2-Medium",
        "GPT-2-Large",
        "BERT-Large",
        "T5-Large",
    ]
    assert all(np.nanmax(curve.dimension_values(1)) <= 100 for curve in curves)
    drawn(figure, backend)


def test_a_panel_with_one_logarithmic_axis_is_as_wide_as_others() -> None:
    results = predict_experiment(select("micro_batches", "predicted", "rdma", profile="predicted"))
    hvplot.extension("matplotlib", logo=False)
    picture = drawn(share_by_micro_batch(results), "matplotlib")
    picture.canvas.draw()
    box = picture.axes[0].get_window_extent()
    assert box.width / box.height == pytest.approx(WIDTH / HEIGHT, rel=0.01)


def test_larger_models_have_two_panels(backend: str) -> None:
    results = predict_larger()
    figure = larger_scale(results)
    curves = figure.traverse(lambda element: element, [hv.Curve])
    assert len(curves) == 2 * results.sizes["model"]
    drawn(figure, backend)


def test_what_was_not_run_says_why(backend: str) -> None:
    empty = not_run({"testbed": "no namespaces"})
    for figure in (timer_breakdown, split_breakdown, node_utilisation, timeline, batch_heatmap):
        (text,) = figure(empty).traverse(lambda element: element, [hv.Text])
        assert text.data[2] == "not run here: testbed: no namespaces"


def test_every_kind_of_experiment_has_figures(pipelines: xr.Dataset) -> None:
    assert set(figures_of(pipelines)) == {"timers", "split", "timeline", "nodes", "received"}
    swept = predict_experiment(select("pipeline_batches", "predicted", models="bert-large"))
    assert set(figures_of(swept)) == {"share"}
