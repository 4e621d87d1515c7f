"""Calibration finds what made the measurements, and leaves alone what they say nothing about."""

import numpy as np
import pandas as pd
import pytest
from examples import CALIBRATED, measurements

from repro.errors import ReproError
from repro.predict.calibration.step_fitting import PRIORS, fit, log_errors, model_sizes
from repro.predict.tables.training import training_rows

# What an unlike machine would have; not far beyond what is held possible beforehand.
_TRUTH = CALIBRATED.model_copy(
    update={
        "gemm_efficiency": 0.75,
        "memory_efficiency": 0.8,
        "host_layer_s": 4e-4,
        "kernel_s": 6e-6,
        "collective_latency_s": 6e-5,
        "straggler_fraction": 0.03,
    }
)
_START = CALIBRATED.model_copy(update={name: prior.median for name, prior in PRIORS.items()})


def test_a_fit_finds_what_made_the_measurements() -> None:
    # Every run three times: enough to say more than the priors.
    table = pd.concat([measurements(_TRUTH)] * 3, ignore_index=True)
    parts = list(training_rows(table))
    before = np.abs(log_errors(parts, _START))
    found = _START.model_copy(update=fit(parts, _START).values)
    after = np.abs(log_errors(parts, found))
    assert before.mean() > 0.1
    # Priors pull a little still.
    assert after.mean() < 0.01
    assert after.max() < 0.02
    # What decides most of the times is found itself.
    assert found.gemm_efficiency == pytest.approx(0.75, rel=0.05)
    assert found.host_layer_s == pytest.approx(4e-4, rel=0.15)


def test_priors_hold_what_the_measurements_do_not_show() -> None:
    table = measurements(_TRUTH)
    names = ("gemm_efficiency", "host_layer_s", "hop_s")
    # No pipelines, so no hops.
    found = fit(list(training_rows(table[table.pp == 1])), _START, names)
    assert tuple(found.values) == names
    prior = PRIORS["hop_s"]
    assert found.values["hop_s"] == pytest.approx(prior.median, rel=1e-6)
    assert found.covariance[2, 2] == pytest.approx(prior.deviation**2, rel=1e-6)
    for number, name in enumerate(names[:2]):
        assert found.covariance[number, number] < PRIORS[name].deviation ** 2 / 4


def test_sets_weigh_as_the_square_roots_of_their_sizes() -> None:
    # Measurements that agree with the priors, so that all errors are nothing.
    table = measurements(_START)
    information = []
    for sets in (["all"], ["even", "odd"]):
        table["set"] = [sets[number % len(sets)] for number in range(len(table))]
        found = fit(list(training_rows(table)), _START, ("gemm_efficiency",))
        variance = found.covariance[0, 0]
        information.append(1 / variance - PRIORS["gemm_efficiency"].deviation ** -2)
    # Two halves weigh 2 sqrt(n/2), their union sqrt(n).
    assert information[1] / information[0] == pytest.approx(2**0.5, rel=1e-3)


def test_errors_are_in_the_order_of_the_parts() -> None:
    table = measurements(CALIBRATED)
    table.loc[0, "iteration_time_s"] *= np.e
    # Another machine, if hardly so: its rows come in a part of their own.
    table["inter_node_gbps_per_node"] = 1600.0
    table.loc[4, "inter_node_gbps_per_node"] = 1600.5
    parts = list(training_rows(table))
    errors = log_errors(parts, CALIBRATED)
    assert errors.index.tolist() == [number for part in parts for number in part.index]
    assert errors[0] == pytest.approx(-1)
    assert errors.drop(0).to_numpy() == pytest.approx(0, abs=1e-3)


def test_calibrating_takes_two_models() -> None:
    table = measurements(CALIBRATED)
    with pytest.raises(ReproError, match="all runs are of one model"):
        model_sizes(table[table.hidden == table.hidden[0]])
