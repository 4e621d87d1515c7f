"""The GPT-350M report's figures: bars add up, lines are what they say, both backends draw them."""

from pathlib import Path

import holoviews as hv
import hvplot
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from drawing import drawn

from repro.catalog.models.papers import model
from repro.catalog.studies.selection import select
from repro.figures.experiments.every import figures_of
from repro.figures.experiments.sharded import collective_times, share_by_gpus, throughput_by_gpus
from repro.figures.export import save_figure
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.results.store import not_run

pytestmark = pytest.mark.slow

_MODELS = ("gpt-350m", "gpt-1.3b")
_FIGURES = (collective_times, share_by_gpus, throughput_by_gpus)


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    return predict_experiment(select("gpt350m", "predicted", profile="predicted"))


def _phase_ms(results: xr.Dataset, name: str, phase: str, gpus: int, micro_batch: int) -> float:
    at = {"model": name, "phase": phase, "gpus": gpus, "micro_batch_size": micro_batch}
    return 1e3 * float(results["phase_time_s"].sel(at).squeeze())


def test_bars_add_up_to_both_collectives(results: xr.Dataset, backend: str) -> None:
    figure = collective_times(results)
    panels = list(figure)
    assert len(panels) == len(_MODELS)
    for panel, name in zip(panels, _MODELS, strict=True):
        bars = panel.traverse(lambda element: element, [hv.Rectangles])
        times = pd.concat([bar.dframe() for bar in bars]).groupby("run")["value"].sum()
        assert len(times) == 4
        for gpus in (1, 2, 4, 8):
            both = [
                _phase_ms(results, name, phase, gpus, 1)
                for phase in ("gradient sync", "parameter all-gather")
            ]
            (found,) = (value for key, value in times.items() if int(key) == gpus)
            assert found == pytest.approx(sum(both))
    drawn(figure, backend)


@pytest.mark.parametrize("draw", [share_by_gpus, throughput_by_gpus])
def test_panels_have_a_line_per_micro_batch(
    results: xr.Dataset, draw: object, backend: str
) -> None:
    figure = draw(results)  # type: ignore[operator]
    panels = list(figure)
    assert [panel.opts.get("plot").kwargs["title"] for panel in panels] == [
        model(name).label for name in _MODELS
    ]
    sizes = [str(size) for size in results["micro_batch_size"].values]
    for panel in panels:
        # The axis is what is drawn, not the last line's name.
        assert panel.opts.get("plot").kwargs["ylabel"].startswith(("communication", "tokens/s"))
        curves = panel.traverse(lambda element: element, [hv.Curve])
        assert len(curves) == len(sizes)
        assert all(len(curve) == 4 for curve in curves)
        assert [curve.label for curve in curves] == [f"micro batch {size}" for size in sizes]
    drawn(figure, backend)


def test_lines_are_shares_and_tokens(results: xr.Dataset, backend: str) -> None:
    for number, name in enumerate(_MODELS):
        at = {"model": name, "gpus": 8, "micro_batch_size": 4}
        iteration = float(results["iteration_time_s"].sel(at).squeeze())
        communication = sum(
            _phase_ms(results, name, phase, 8, 4) / 1e3
            for phase in ("straggler wait", "gradient sync", "parameter all-gather")
        )
        expected = {
            share_by_gpus: 100 * communication / iteration,
            throughput_by_gpus: 4 * 1024 / iteration,
        }
        for draw, value in expected.items():
            panel = list(draw(results))[number]
            curves = panel.traverse(lambda element: element, [hv.Curve])
            (curve,) = (one for one in curves if one.label == "micro batch 4")
            assert curve.dimension_values(0).tolist() == [1, 2, 4, 8]
            assert curve.dimension_values(1)[-1] == pytest.approx(value)
            assert np.nanmin(curve.dimension_values(1)) >= 0


@pytest.mark.parametrize("draw", _FIGURES)
def test_what_was_not_run_says_why(draw: object, backend: str) -> None:
    figure = draw(not_run({"testbed": "no namespaces"}))  # type: ignore[operator]
    (text,) = figure.traverse(lambda element: element, [hv.Text])
    assert text.data[2] == "not run here: testbed: no namespaces"
    drawn(figure, backend)


def test_they_are_the_experiments_figures(results: xr.Dataset, tmp_path: Path) -> None:
    figures = figures_of(results)
    assert tuple(figures.values()) == _FIGURES
    for name, draw in figures.items():
        # save_figure chooses the backend and calls back.
        written = save_figure(lambda draw=draw: draw(results), tmp_path / name)  # type: ignore[misc]
        assert [path.suffix for path in written] == [".svg", ".png", ".csv"]
        assert min(path.stat().st_size for path in written) > 200
