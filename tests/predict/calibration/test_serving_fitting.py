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
from repro.predict.serving.parameters import read_fits
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


def test_costs_in_the_repository_are_those_of_the_published_rows(published: pd.DataFrame) -> None:
    kept = read_fits()
    for name, found in calibrate_serving(published, "every published row").items():
        # Four digits are written.
        assert kept[name].costs.model_dump() == pytest.approx(found.costs.model_dump(), rel=1e-3)
        assert kept[name].residuals.mape_pct == pytest.approx(found.residuals.mape_pct, rel=1e-3)
