"""Fused steps: what ships is what was published, and no fit has seen what it is judged on."""

import numpy as np
import pandas as pd
import pytest

from repro.catalog.systems.gpus import find_gpu_name
from repro.paths import PUBLISHED
from repro.predict.calibration.software_fitting import (
    TRAINING_PRIORS,
    model_weights,
    parameters_of,
    training_fitting,
)
from repro.predict.fused.iteration import iteration_times_s
from repro.predict.fused.parameters import read_fused
from repro.predict.tables.reading import read_rows
from repro.predict.tables.training import read_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def published() -> pd.DataFrame:
    files = ("training_modern.csv", "training_mlperf.csv")
    rows = pd.concat([read_rows(PUBLISHED / name) for name in files], ignore_index=True)
    calibrated = [find_gpu_name(str(label)) in read_fused().gpus for label in rows.gpu]
    return rows[calibrated].reset_index(drop=True)


def test_parameters_in_the_repository_are_those_of_the_published_runs(
    published: pd.DataFrame,
) -> None:
    found = parameters_of(training_fitting(published).fit()).model_dump()
    for name, value in read_fused().parameters.model_dump().items():
        # Four digits are written.
        assert value == pytest.approx(found[name], rel=1e-3), name


def test_a_fit_finds_the_parameters_that_made_the_iterations(published: pd.DataFrame) -> None:
    run = read_runs(published)
    medians = {name: prior.median for name, prior in TRAINING_PRIORS.items()}
    truth = {**medians, "memory_efficiency": 0.78, "launch_s": 7e-6, "sustained hopper bf16": 0.75}
    measured_s = iteration_times_s(run, parameters_of(truth))
    before, after = (
        np.abs(np.log(iteration_times_s(run, parameters) / measured_s)).mean()
        for parameters in (
            parameters_of(medians),
            parameters_of(training_fitting(published.assign(iteration_time_s=measured_s)).fit()),
        )
    )
    # Priors pull a little still.
    assert before > 0.02 and after < before / 10


def test_a_held_out_model_is_seen_by_no_fit_of_its_own(published: pd.DataFrame) -> None:
    few = published.groupby("model").head(2).reset_index(drop=True)
    alone = (few.model == few.model.iloc[0]).rename("of the first model")
    twice = few.iteration_time_s.where(~alone, 2 * few.iteration_time_s)
    before, after = (
        training_fitting(table).cross_validate(alone)
        for table in (few, few.assign(iteration_time_s=twice))
    )
    np.testing.assert_allclose(after[alone] - before[alone], -np.log(2), rtol=1e-6)
    assert np.abs(after[~alone] - before[~alone]).max() > 0.005


def test_measurements_of_one_configuration_weigh_as_one() -> None:
    table = pd.DataFrame({"model": ["a"] * 3 + ["b"] * 2, "dup_group": [1, 1, 2, 3, 4], "gpus": 8})
    weights = model_weights(table)
    # Two configurations of either model.
    assert weights[:2].sum() == pytest.approx(weights[2]) == pytest.approx(weights[3])
