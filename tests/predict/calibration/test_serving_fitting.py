"""What serving software costs: found in made-up latencies, and what ships is what was published."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.systems.serving import ServingCosts
from repro.paths import PUBLISHED
from repro.predict.calibration.software_fitting import (
    SERVING_PRIORS,
    calibrate_serving,
    model_names,
    serving_fitting,
)
from repro.predict.calibration.validation import predict_serving
from repro.predict.serving.parameters import KINDS, read_fits
from repro.predict.tables.reading import read_rows

pytestmark = pytest.mark.slow

# What unlike software would have; not far beyond what is held possible beforehand.
_TRUTH = ServingCosts(
    gap_s=5e-6,
    arrival_s=2e-5,
    hop_s=1e-5,
    step_s=1.5e-3,
    sequence_s=8e-5,
    products=1.05,
    reading=0.7,
    traffic=2.6,
)
_START = {name: prior.median for name, prior in SERVING_PRIORS.items()}


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    return read_rows(PUBLISHED / "inference_a100_fastertransformer.csv")


@pytest.fixture(scope="module")
def made_up(published: pd.DataFrame) -> pd.DataFrame:
    """The published configurations, with the latencies of such software."""
    longer = np.exp(serving_fitting(published).log_errors(_TRUTH.model_dump(), slice(None)))
    return published.assign(latency_ms=published.latency_ms * longer)


def test_a_fit_finds_the_costs_that_made_the_latencies(made_up: pd.DataFrame) -> None:
    fitting = serving_fitting(made_up)
    found = fitting.fit()
    before, after = (np.abs(fitting.log_errors(one, slice(None))) for one in (_START, found))
    # Priors pull a little still.
    assert before.mean() > 0.15 and after.mean() < 0.01
    assert found["step_s"] == pytest.approx(_TRUTH.step_s, rel=0.1)
    assert found["reading"] == pytest.approx(_TRUTH.reading, rel=0.1)


def test_a_held_out_model_is_seen_by_no_fit_of_its_own(made_up: pd.DataFrame) -> None:
    models = model_names(made_up)
    alone = models == models.iloc[0]
    twice = made_up.latency_ms.where(~alone, 2 * made_up.latency_ms)
    before, after = (
        serving_fitting(table).cross_validate(models)
        for table in (made_up, made_up.assign(latency_ms=twice))
    )
    # Its error is all of the change, and others' fits have seen it.
    np.testing.assert_allclose(after[alone] - before[alone], -np.log(2), rtol=1e-6)
    assert np.abs(after[~alone] - before[~alone]).max() > 0.01


@pytest.mark.parametrize("source", ["inference_a100_fastertransformer.csv", "serving_engines.csv"])
def test_costs_in_the_repository_are_those_of_the_published_rows(source: str) -> None:
    kept = read_fits()
    for name, found in calibrate_serving(read_rows(PUBLISHED / source), source).items():
        # Four digits are written.
        assert kept[name].costs.model_dump() == pytest.approx(found.costs.model_dump(), rel=1e-3)
        for kind, one in found.residuals.items():
            assert kept[name].residuals[kind].mape_pct == pytest.approx(one.mape_pct, rel=1e-3)


def test_engines_are_neither_too_fast_nor_too_sure() -> None:
    """Also by tensor parallel size: the network takes no more of the time than was measured."""
    rows = read_rows(PUBLISHED / "serving_engines.csv")
    found = predict_serving(rows)
    errors = np.log(found.time_s / found.measured_s)
    assert (errors.groupby(rows.tp).mean().abs() < 0.03).all()
    within = errors.abs() <= found.half_width
    assert within.mean() >= 0.9
    # Sets have 44 rows or more: two standard deviations of the fraction within are 9 %.
    assert (within.groupby(rows["set"]).mean() >= 0.81).all()
    # Held-out models, GPUs and sets.
    for name in ("tensorrt-llm", "vllm"):
        dense, mixtures = (read_fits()[name].residuals[kind] for kind in KINDS)
        assert dense.mape_pct < 9 and mixtures.mape_pct < 14
