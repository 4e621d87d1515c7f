"""The testbed, predicted: a made-up one whose times follow the law exactly."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from repro.predict.explore.experiments.cpu_ranks import (
    CpuRanks,
    calibrate_ranks,
    measured_configurations,
    predict_testbed,
)

_TRUE = CpuRanks(0.008, 1.0e10, 0.004, 1.5e10, 0.004, 1.2e8, 0.003, 0.0)


@pytest.fixture
def lawful(made_up_results: xr.Dataset) -> dict[str, xr.Dataset]:
    """The made-up experiment with the phases that `_TRUE` predicts."""
    results = {"weak_scaling": made_up_results.copy(deep=True)}
    rows = measured_configurations(results)
    exact = predict_testbed(results, _TRUE).predicted_s
    for row, total in zip(rows.itertuples(), exact, strict=True):
        at = {"model": row.model, "protocol": row.protocol, "gpus": row.gpus}
        optimizer = _TRUE.optimizer_s + row.parameters / _TRUE.optimizer_parameters_per_s
        forward = row.layers * _TRUE.forward_layer_s + row.forward_flops / _TRUE.forward_flops_per_s
        backward = row.layers * _TRUE.backward_layer_s
        backward += 2 * row.forward_flops / _TRUE.backward_flops_per_s
        phases = {
            "forward compute": forward,
            "backward compute": backward,
            "straggler wait": 0.0,
            "gradient sync": total - forward - backward - optimizer,
            "optimizer": optimizer,
            "other": 0.0,
        }
        dataset = results["weak_scaling"]
        for phase, seconds in phases.items():
            dataset["phase_time_s"].loc[{**at, "phase": phase}] = seconds
        dataset["iteration_time_s"].loc[at] = total
    return results


def test_calibration_finds_the_law(lawful: dict[str, xr.Dataset]) -> None:
    found = calibrate_ranks(lawful)
    rows = predict_testbed(lawful, found)
    assert np.allclose(rows.predicted_s, rows.measured_s, rtol=0.02)
    assert set(rows.gpus[rows.calibrated]) == {2}


def test_more_overhead_is_more_time(lawful: dict[str, xr.Dataset]) -> None:
    slow = replace(_TRUE, collective_s=_TRUE.collective_s + 1.0)
    difference = (
        predict_testbed(lawful, slow).predicted_s - predict_testbed(lawful, _TRUE).predicted_s
    )
    assert np.allclose(difference, 1.0)
