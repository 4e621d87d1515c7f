"""Figures of predictions show the numbers of the plans, and tables have every scenario."""

from functools import partial
from pathlib import Path

import holoviews as hv
import hvplot
import matplotlib.image
import pandas as pd
import pytest
from drawing import drawn

from repro.figures.export import save_figure
from repro.figures.predicted.what_if import (
    compare,
    plan_breakdown,
    plan_links,
    plan_memory,
    plans_table,
    reference_jobs,
    scenario_figures,
    scenario_tables,
    scenarios,
    verdict,
)
from repro.predict.explore.jobs.plans import PaperJob, best_plans, choose_job, describe

pytestmark = pytest.mark.slow


@pytest.fixture(params=["bokeh", "matplotlib"])
def backend(request: pytest.FixtureRequest) -> str:
    hvplot.extension(request.param, logo=False)
    return str(request.param)


@pytest.fixture(scope="module")
def job() -> PaperJob:
    return choose_job("gpt2-large", "pinnacles", "rdma", 8, 32)


@pytest.fixture(scope="module")
def plans(job: PaperJob) -> pd.DataFrame:
    return best_plans(job, 5)


@pytest.fixture(scope="module")
def compared() -> pd.DataFrame:
    return compare(reference_jobs())


def _table(figure: hv.Overlay, element: type) -> pd.DataFrame:
    (found,) = figure.traverse(lambda part: part, [element])
    return found.dframe()


def test_phases_add_up_to_the_iteration(plans: pd.DataFrame, backend: str) -> None:
    figure = plan_breakdown(plans)
    milliseconds = 1e3 * plans.iteration_time_s.to_numpy()
    total = _table(figure, hv.Bars).groupby("plan")["time"].sum()
    assert total[describe(plans.index)].to_numpy() == pytest.approx(milliseconds)
    ends = _table(figure, hv.ErrorBars).set_index("plan").loc[describe(plans.index)]
    assert ends["time"].to_numpy() == pytest.approx(milliseconds)
    high = 1e3 * plans.high_s.to_numpy()
    assert (ends["time"] + ends["above"]).to_numpy() == pytest.approx(high)
    drawn(figure, backend)


def test_memory_adds_up_and_the_mark_is_the_gpus(plans: pd.DataFrame, backend: str) -> None:
    figure = plan_memory(plans)
    total = _table(figure, hv.Bars).groupby("plan")["memory"].sum()
    assert total[describe(plans.index)].to_numpy() == pytest.approx(plans.memory_bytes / 1e9)
    # Of 40 GB, which are binary and of which the driver keeps a hundredth.
    (mark,) = set(_table(figure, hv.Scatter)["memory"])
    assert mark == pytest.approx(42.520176)
    drawn(figure, backend)


def test_use_of_nics_is_in_percent_of_the_protocols_rate(plans: pd.DataFrame, backend: str) -> None:
    figure = plan_links(plans)
    bursts = _table(figure, hv.Scatter).set_index("plan").loc[describe(plans.index), "rate"]
    assert bursts.to_numpy() == pytest.approx(100 * plans.fabric_burst_gbps / 81.9)
    assert bursts.max() == pytest.approx(100, abs=1)
    drawn(figure, backend)


def test_marks_and_bars_stand_in_the_same_order(compared: pd.DataFrame, backend: str) -> None:
    # Matplotlib takes the first element's order for all.
    for figure in (plan_breakdown(compared), plan_links(compared), plan_memory(compared)):
        bars, marks = (part.dframe()["plan"].unique().tolist() for part in figure)
        assert bars == marks
        assert bars[-1].startswith("cluster A, RDMA")


def test_one_node_sends_nothing(backend: str) -> None:
    alone = best_plans(choose_job("bert-large", "dgx-h100", "fabric", 8, 64), 2)
    figure = plan_links(alone)
    assert set(_table(figure, hv.Scatter)["rate"]) == {0.0}
    drawn(figure, backend)


def test_scenarios_become_a_picture(compared: pd.DataFrame, tmp_path: Path) -> None:
    save_figure(partial(scenarios, compared), tmp_path / "scenarios")
    picture = matplotlib.image.imread(tmp_path / "scenarios.png")
    assert picture.shape[0] > 600 and picture.std() > 0.05, "the picture is empty"


def test_only_the_cheapest_plan_of_a_job_is_marked(
    plans: pd.DataFrame, compared: pd.DataFrame
) -> None:
    table = plans_table(plans).data
    assert list(table[""]) == ["cheapest", "", "", "", ""]
    assert table.loc[1, "iteration, ms"] == pytest.approx(1e3 * plans.iteration_time_s.iloc[0])
    assert "" not in plans_table(compared).data
    assert "Predicted" in plans_table(compared).to_html()


def test_the_verdict_says_that_it_is_predicted(job: PaperJob, plans: pd.DataFrame) -> None:
    said = verdict(job, plans)
    assert said.startswith("Predicted for GPT-2-Large, global batch 32, on 8 GPUs over RDMA")
    assert f"{1e3 * plans.iteration_time_s.iloc[0]:.0f} ms an iteration" in said


def test_every_scenario_has_its_table_and_is_in_the_figures() -> None:
    titles = {job.title for job in reference_jobs().values()}
    assert set(scenario_tables()) == {"The best plan of each"} | titles
    assert [figure.name for figure in scenario_figures()] == [
        "what-if-time",
        "what-if-links",
        "what-if-memory",
    ]
