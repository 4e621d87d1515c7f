"""Figures show the numbers they were given, in a notebook and on disk."""

import json
from pathlib import Path

import holoviews as hv
import hvplot
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from drawing import drawn

from repro.figures.experiments.scaling import breakdown, received_over_time, share_by_protocol
from repro.figures.experiments.similarity import sensitivity
from repro.figures.export import save_figure, save_interactive
from repro.results.store import not_run

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


def test_bars_are_milliseconds_at_full_scale(made_up_results: xr.Dataset, backend: str) -> None:
    panels = list(breakdown(made_up_results))
    assert len(panels) == 4
    bars = panels[0].traverse(lambda element: element, [hv.Rectangles])
    value = {bar.label: bar.dframe().set_index("run")["value"] for bar in bars}
    # 0.175 s on the testbed, at two testbed seconds per full-scale second.
    assert value["gradient sync"]["8 RDMA"] == pytest.approx(87.5)
    assert value["forward compute"]["2 TCP/IP"] == pytest.approx(15.0)
    tops = {bar.label: bar.dframe().set_index("run")["top"] for bar in bars}
    assert max(top["8 RDMA"] for top in tops.values()) == pytest.approx(1e3 * 0.275 / 2)
    drawn(panels[0], backend)
    assert "forward all-to-all" not in value


def test_exchanges_of_experts_are_shown_where_there_are_any(made_up_results: xr.Dataset) -> None:
    phase = made_up_results["phase"]
    exchanged = made_up_results.assign(
        phase_time_s=made_up_results["phase_time_s"] + 0.1 * (phase == "forward all-to-all")
    )
    panel = next(iter(breakdown(exchanged)))
    shown = {bar.label for bar in panel.traverse(lambda element: element, [hv.Rectangles])}
    assert "forward all-to-all" in shown
    assert "backward all-to-all" not in shown


def test_rates_are_gigabits_at_full_scale(made_up_results: xr.Dataset, backend: str) -> None:
    panel = next(iter(received_over_time(made_up_results)))
    curves = panel.traverse(lambda element: element, [hv.Curve])
    assert len(curves) == 3
    highest = max(float(np.nanmax(curve.dimension_values("received"))) for curve in curves)
    assert highest == pytest.approx(20 * 0.5 / 0.275, rel=0.02)
    (marks,) = panel.traverse(lambda element: element, [hv.Rectangles])
    assert len(marks) == 3 and marks.label == "validation"
    drawn(panel, backend)


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
        assert [path.suffix for path in written] == [".svg", ".png", ".csv"]
    picture = matplotlib.image.imread(tmp_path / "a" / "figure.png")
    assert picture.shape[0] > 400 and picture.std() > 0.05, "the picture is empty"
    assert "<svg" in (tmp_path / "a" / "figure.svg").read_text()[:600]
    for suffix in (".svg", ".png", ".csv"):
        one, two = (tmp_path / folder / f"figure{suffix}" for folder in ("a", "b"))
        assert one.read_bytes() == two.read_bytes()


def test_predictions_say_that_they_have_no_series(made_up_results: xr.Dataset) -> None:
    averages = made_up_results.drop_dims("sample")
    assert "no rates over time" in str(received_over_time(averages).Text.I.data)


def test_the_table_has_what_the_figure_shows(made_up_results: xr.Dataset, tmp_path: Path) -> None:
    save_figure(lambda: breakdown(made_up_results), tmp_path / "figure")
    table = pd.read_csv(tmp_path / "figure.csv").set_index(["panel", "name", "run"])
    assert table.loc[("T5-Large", "gradient sync", "8 RDMA"), "value"].item() == 87.5


def test_published_values_are_marks_of_their_own(made_up_results: xr.Dataset, backend: str) -> None:
    weak = made_up_results.assign_attrs(experiment="weak_scaling")
    share = share_by_protocol(weak)
    (marks,) = (
        one for one in share.traverse(lambda one: one, [hv.Scatter]) if one.label == "published"
    )
    assert sorted(marks.dimension_values("published")) == [50.5, 80.78, 91.12]
    curves = share.traverse(lambda one: one, [hv.Curve])
    assert [curve.label for curve in curves] == ["RDMA", "IPoIB", "TCP/IP"]
    # 0.175 s of 0.275 s.
    assert curves[0].dimension_values(1)[-1] == pytest.approx(100 * 0.175 / 0.275)
    boxes = received_over_time(weak).traverse(lambda one: one, [hv.Rectangles])
    ranges = {box.label: box.dframe().iloc[0] for box in boxes if "published" in box.label}
    assert (ranges["RDMA, published"]["y0"], ranges["RDMA, published"]["y1"]) == (38, 56)


def test_a_page_draws_every_panel_and_legends_hide(
    made_up_results: xr.Dataset, tmp_path: Path
) -> None:
    written = save_interactive(lambda: breakdown(made_up_results), tmp_path / "figure")
    drawn = json.loads(written.read_text())
    assert len(drawn["item"]["roots"]) == len(drawn["widths"]) == 4
    assert "GPT-2-Large" in drawn["titles"]
    assert json.dumps(drawn["documents"]).count('"click_policy": "hide"') == 4
