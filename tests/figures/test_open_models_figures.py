"""Figures of open models show what was predicted, and published runs beside it."""

import holoviews as hv
import pandas as pd
import pytest

from repro.catalog.job_inputs import read_hardware, read_model
from repro.figures.predicted.open_models import (
    plan_phases,
    published_errors,
    published_runs,
    slower_by_imbalance,
    worst_runs,
)
from repro.paths import PUBLISHED
from repro.predict.explore.jobs.fused_plans import best_plans, by_imbalance


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    hv.extension("matplotlib")
    return published_runs()


def test_bars_add_up_to_the_iteration(runs: pd.DataFrame) -> None:
    best = best_plans(read_model("llama3.1-8b"), read_hardware("h100-sxm-80gb"), 8, 128, count=3)
    bars, interval = plan_phases(best)
    total = bars.data.groupby("index", sort=False).value.sum()
    # Phases that no plan has much of are left out.
    assert total.to_numpy()[::-1] == pytest.approx(best.iteration_time_s, rel=0.05)
    assert list(interval.dimension_values("time"))[::-1] == pytest.approx(best.iteration_time_s)


def test_every_published_run_is_a_mark(runs: pd.DataFrame) -> None:
    published = pd.read_csv(PUBLISHED / "training_modern.csv")
    assert len(runs) == len(published) == 239
    marks = published_errors(runs).get(1)
    assert sum(len(one.data) for one in marks) == len(published)
    # Slower than published is an error above zero.
    assert ((runs.predicted < runs.published) == (runs.error_pct > 0)).all()


def test_the_worst_come_first(runs: pd.DataFrame) -> None:
    worst = worst_runs(runs, 5)
    assert len(worst) == 5
    assert worst.error_pct.abs().is_monotonic_decreasing
    assert worst.error_pct.abs().iloc[0] == pytest.approx(runs.error_pct.abs().max(), abs=0.05)


def test_uneven_experts_take_longer_within_their_band(runs: pd.DataFrame) -> None:
    plans = by_imbalance(
        read_model("qwen3-30b-a3b"), read_hardware("h100-sxm-80gb"), 16, 256, [1.0, 1.5, 2.0]
    )
    assert plans.iteration_time_s.is_monotonic_increasing
    band, line = slower_by_imbalance(plans)
    assert list(line.data.iteration_time_s) == list(plans.iteration_time_s)
    assert (band.dimension_values("low") < plans.iteration_time_s).all()
    assert (band.dimension_values("high") > plans.iteration_time_s).all()
