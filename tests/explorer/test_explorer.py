"""The explorer shows the model's and the results' numbers, and its URL restores the settings."""

from dataclasses import replace
from pathlib import Path

import hvplot
import numpy as np
import panel as pn
import pytest
import xarray as xr
from bokeh.document import Document
from hypothesis import given
from hypothesis import strategies as st
from panel.io.location import Location
from panel.io.state import set_curdoc

from repro.catalog.studies.selection import select
from repro.errors import ReproError
from repro.explorer import view as views
from repro.explorer.page import Page
from repro.explorer.page_state import sync_with_url
from repro.explorer.view import EXPERIMENTS, breakdown, default_view, plans
from repro.predict.explore.experiments.predicted import predict_experiment
from repro.predict.explore.jobs.plans import best_plans, choose_job
from repro.predict.explore.jobs.search import pareto
from repro.results.metrics import iteration_time_s
from repro.results.store import write_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _served() -> None:
    """As in the server's process; other tests draw with matplotlib."""
    hvplot.extension("bokeh", logo=False)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_up_results: xr.Dataset) -> None:
    monkeypatch.setattr(views, "RESULTS", tmp_path)
    write_dataset(made_up_results, tmp_path / "weak_scaling.nc")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_as_measured_is_the_experiments_prediction(name: str) -> None:
    bars, _ = breakdown(default_view(name, "bert-large", "ipoib"))
    asked = select(name, "predicted", "ipoib", "bert-large", 8)
    wanted = 1e3 * float(iteration_time_s(predict_experiment(asked)).squeeze())
    assert bars.loc["predicted, as measured"].sum() == pytest.approx(wanted, rel=1e-6)
    assert bars.loc["predicted, as set"].sum() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.usefixtures("results")
def test_what_was_measured_stands_beside_it() -> None:
    bars, origin = breakdown(default_view("weak_scaling", "bert-large", "ipoib"))
    # Made up: 0.1 s of computing and 2 x 7/8 x 10/25 s of sync, in a testbed twice as slow.
    assert bars.loc["measured", "gradient sync"] == pytest.approx(1e3 * 0.7 / 2)
    assert bars.loc["measured"].sum() == pytest.approx(1e3 * 0.8 / 2)
    assert origin == "measured here"
    bars, origin = breakdown(default_view("strong_scaling"))
    assert "measured" in bars.index and origin == "reference run"


def test_sliders_move_the_prediction_as_theory_says() -> None:
    start = default_view("weak_scaling", "gpt2-large", "tcp")

    def synced(**changes: float) -> float:
        bars, _ = breakdown(replace(start, **changes))
        return float(bars.loc["predicted, as set", "gradient sync"])

    # What a link carries takes as much longer as it is slower; latency adds.
    assert synced(gbps=start.gbps / 2) == pytest.approx(2 * synced(), rel=0.05)
    assert synced(latency_us=1000.0) > synced()
    bars, _ = breakdown(replace(start, sequences=8))
    computed = bars["forward compute"]
    assert 1.5 < computed["predicted, as set"] / computed["predicted, as measured"] < 2.1


@given(
    st.integers(2, 3)
    .flatmap(lambda k: st.lists(st.tuples(*[st.integers(0, 4)] * k), min_size=1, max_size=12))
    .map(lambda rows: np.array(rows, dtype=float))
)
def test_no_choice_of_the_front_is_worse_than_another(costs: np.ndarray) -> None:
    for kept, row in zip(pareto(costs), costs, strict=True):
        better = [o for o in costs if (o <= row).all() and (o < row).any()]
        assert kept == (not better)


def test_plans_are_those_of_what_if_and_the_fastest_is_on_the_front() -> None:
    start = default_view("weak_scaling", "bert-large")
    table = plans(start)
    eight = best_plans(choose_job("bert-large", "pinnacles", "rdma", 8, 32), 1)
    assert table.loc[8].iteration_time_s.min() == pytest.approx(eight.iteration_time_s.iloc[0])
    assert table["pareto"].iloc[0]
    assert table.loc[table.gpu_s_per_sequence.idxmin(), "pareto"]
    with pytest.raises(ReproError, match="does not divide"):
        breakdown(replace(default_view("model_parallelism"), gpus=2, sequences=1))


def test_another_protocol_begins_with_its_own_rate() -> None:
    shown = Page()
    shown.gbps.value = 300.0
    shown.protocol.value = "tcp"
    assert shown.gbps.value == default_view(EXPERIMENTS[0], protocol_name="tcp").gbps


def test_an_address_brings_the_view_back() -> None:
    document = Document()
    with set_curdoc(document):
        location = Location(search="?protocol=tcp&gbps=40.5&gpus=4")
        pn.state._locations[document] = location
        shown = Page()
        sync_with_url(shown.widgets)
        # The rate is the address's, not the one that the protocol begins with.
        assert (shown.protocol.value, shown.gbps.value, shown.gpus.value) == ("tcp", 40.5, 4)
        shown.sequences.value = 8
        assert "sequences=8" in location.search and "gbps=40.5" in location.search


def test_plans_follow_what_is_set_by_others_than_sliders() -> None:
    shown = Page()
    view = shown.layout()
    view.get_root()

    def table() -> str:
        return str(view[1][1]._pane[2].object.data["NICs deliver, Gbit/s"])

    before = table()
    shown.protocol.value = "tcp"
    assert before != table() and "9.4" in table()


def test_the_page_shows_figures_or_says_why_not() -> None:
    shown = Page()
    view = shown.layout()
    view.get_root()
    iteration = view[1][0]
    assert isinstance(iteration._pane, pn.pane.HoloViews)
    shown.experiment.value = "model_parallelism"
    shown.gpus.value = 2
    shown.sequences.value = 1
    assert "does not divide" in iteration._pane.object
