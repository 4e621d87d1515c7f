"""Figures of memory and of designs show the numbers they are given."""

import holoviews as hv
import hvplot
import numpy as np
import pandas as pd
import pytest
from drawing import drawn

from repro.catalog.models.open_models import open_model
from repro.catalog.systems.technology import read_technology
from repro.figures.predicted.hardware import bound_regions, fronts, generations_compared
from repro.predict.explore.hardware import (
    design_cube,
    generations,
    pareto_front,
    with_budget,
)
from repro.predict.explore.jobs.fused_plans import Training
from repro.studies.memory.figures import parts, published_and_predicted
from repro.studies.memory.predicted import (
    memory_by_policy,
    published_memory,
    published_savings,
)

pytestmark = pytest.mark.slow
_TRAINING = Training(open_model("llama3.1-8b"), 64, 512)


@pytest.fixture(autouse=True, params=["matplotlib", "bokeh"])
def _backend(request: pytest.FixtureRequest) -> None:
    hvplot.extension(request.param)


def _drawn(figure: hv.core.Dimensioned) -> hv.core.Dimensioned:
    assert drawn(figure, hv.Store.current_backend) is not None
    return figure


def test_published_values_stand_over_predicted_ones() -> None:
    memory = published_memory()
    figure = _drawn(published_and_predicted(memory, published_savings()))
    (bars,) = figure.traverse(lambda x: x, [hv.Bars])[:1]
    (marks,) = figure.traverse(lambda x: x, [hv.Scatter])[:1]
    states = memory.xs("states", level="part")
    assert bars.dimension_values("states, GiB") == pytest.approx(states.predicted.to_numpy())
    assert marks.dimension_values("states, GiB") == pytest.approx(states.published.to_numpy())


def test_bars_of_parts_add_up_to_all_memory() -> None:
    table = memory_by_policy("llama3.1-8b", "tp=2,dp=4,micro_batches=2")
    figure = _drawn(parts(table, "Llama", 80.0))
    (bars,) = figure.traverse(lambda x: x, [hv.Bars])
    assert bars.dimension_values("GB").sum() == pytest.approx(table.to_numpy().sum())


def test_designs_are_drawn() -> None:
    technology = read_technology()
    cube = design_cube(
        _TRAINING,
        technology,
        {
            "peak_tflops": np.geomspace(100, 20_000, 4).tolist(),
            "memory_gbytes_per_s": [2000.0],
            "network_gbps": [10.0, 100.0, 1000.0],
            "memory_gb": [80.0],
        },
    )
    mesh = _drawn(bound_regions(cube.isel(memory_gbytes_per_s=0, memory_gb=0), "network_gbps"))
    assert sorted(mesh.dimension_values("bound")) == sorted(cube.bound.values.ravel())
    by_node = {"5 nm": pareto_front(with_budget(cube, technology, 5.0), 800)}
    (curve,) = _drawn(fronts(by_node)).traverse(lambda x: x, [hv.Curve])
    assert len(curve) == len(by_node["5 nm"])


def test_the_first_gpu_is_once_as_fast_as_itself() -> None:
    table = generations(_TRAINING, ["a100-sxm-80gb", "h100-sxm-80gb", "mi300x"])
    figure = _drawn(generations_compared({"Llama 3.1 8B": table}, "A100-SXM-80GB"))
    (points,) = figure.traverse(lambda x: x, [hv.Scatter])
    assert points.dimension_values("times") == pytest.approx(table.times_as_fast)
    spread = np.log(table.high_s / table.low_s)
    assert isinstance(table, pd.DataFrame) and spread["MI300X"] > 2 * spread["A100-SXM-80GB"]
