"""Figures show the numbers they were given, in a notebook and on disk."""

from pathlib import Path

import holoviews as hv
import hvplot
import matplotlib.image
import numpy as np
import pytest
import xarray as xr

from repro.figures.disk import save_figure
from repro.figures.scaling import breakdown, received_over_time
from repro.figures.similarity import sensitivity
from repro.results.store import not_run

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def test_bars_are_milliseconds_at_full_scale(made_up_results: xr.Dataset, backend: str) -> None:
    panels = list(breakdown(made_up_results))
    assert len(panels) == 4
    (bars,) = panels[0].traverse(lambda element: element, [hv.Bars])
    table = bars.dframe().set_index(["GPUs and protocol", "part"])
    value = table.columns[0]
    # 0.175 s on the testbed, at two testbed seconds per full-scale second.
    assert table.loc[("8 RDMA", "gradient sync"), value] == pytest.approx(87.5)
    assert table.loc[("2 TCP/IP", "forward compute"), value] == pytest.approx(15.0)
    hv.render(panels[0], backend=backend)
    assert "forward all-to-all" not in table.index.get_level_values("part")


def test_exchanges_of_experts_are_shown_where_there_are_any(made_up_results: xr.Dataset) -> None:
    phase = made_up_results["phase"]
    exchanged = made_up_results.assign(
        phase_time_s=made_up_results["phase_time_s"] + 0.1 * (phase == "forward all-to-all")
    )
    (bars, *_) = breakdown(exchanged).traverse(lambda element: element, [hv.Bars])
    assert "forward all-to-all" in set(bars.dframe()["part"])
    assert "backward all-to-all" not in set(bars.dframe()["part"])


def test_rates_are_gigabits_at_full_scale(made_up_results: xr.Dataset, backend: str) -> None:
    panel = next(iter(received_over_time(made_up_results)))
    curves = panel.traverse(lambda element: element, [hv.Curve])
    assert len(curves) == 3
    highest = max(float(np.nanmax(curve.dimension_values("received"))) for curve in curves)
    assert highest == pytest.approx(20 * 0.5 / 0.275, rel=0.02)
    (marks,) = panel.traverse(lambda element: element, [hv.Rectangles])
    assert len(marks) == 3
    hv.render(panel, backend=backend)


def test_sensitivity_has_a_line_per_protocol(made_up_results: xr.Dataset, backend: str) -> None:
    one = made_up_results.sel(model=["bert-large"], gpus=[8])
    both = xr.concat([one.expand_dims(mfu=[0.45]), one.expand_dims(mfu=[0.2])], dim="mfu")
    figure = sensitivity(both)
    curves = figure.traverse(lambda element: element, [hv.Curve])
    assert [len(curve) for curve in curves] == [2, 2, 2]


def test_what_was_not_run_is_written_where_the_figure_would_be(backend: str) -> None:
    empty = not_run({"testbed": "no namespaces"})
    for figure in (
        breakdown(empty),
        received_over_time(empty),
        sensitivity(empty.expand_dims(mfu=[0.2])),
    ):
        (text,) = figure.traverse(lambda element: element, [hv.Text])
        assert text.data[2] == "not run here: testbed: no namespaces"


def test_files_are_pictures_and_the_same_every_time(
    made_up_results: xr.Dataset, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        written = save_figure(lambda: breakdown(made_up_results), tmp_path / folder / "figure")
        assert [path.suffix for path in written] == [".svg", ".png"]
    picture = matplotlib.image.imread(tmp_path / "a" / "figure.png")
    assert picture.shape[0] > 400 and picture.std() > 0.05, "the picture is empty"
    assert "<svg" in (tmp_path / "a" / "figure.svg").read_text()[:600]
    for suffix in (".svg", ".png"):
        one, two = (tmp_path / folder / f"figure{suffix}" for folder in ("a", "b"))
        assert one.read_bytes() == two.read_bytes()


def test_predictions_say_that_they_have_no_series(made_up_results: xr.Dataset) -> None:
    averages = made_up_results.drop_dims("sample")
    assert "no rates over time" in str(received_over_time(averages).Text.I.data)
