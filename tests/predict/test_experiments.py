"""Experiments predicted in the schema of the measured ones."""

import numpy as np

from repro.catalog.experiments import experiment
from repro.predict.experiments import draw_scaling, predict_scaling
from repro.results.metrics import communication_fraction, iteration_time_s, utilisation_gbps

_WHAT = (("gpt2-medium", "t5-large"), ("rdma", "tcp"), (2, 8))


def test_metrics_work_on_predictions() -> None:
    predicted = predict_scaling(experiment("weak_scaling"), *_WHAT)
    assert np.allclose(
        predicted["phase_time_s"].sum("phase"), predicted["iteration_time_s"], rtol=1e-6
    )
    assert iteration_time_s(predicted).dims == ("source", "model", "protocol", "gpus")
    shares = communication_fraction(predicted).sel(gpus=8, source="predicted")
    assert bool((shares.sel(protocol="tcp") > shares.sel(protocol="rdma")).all())


def test_a_nic_carries_the_rings_bytes() -> None:
    predicted = predict_scaling(experiment("weak_scaling"), *_WHAT)
    gradients = 2 * 354_871_296  # GPT-2-Medium's parameters in fp16
    at = {"model": "gpt2-medium", "protocol": "tcp", "gpus": 8, "source": "predicted"}
    carried = (utilisation_gbps(predicted) * iteration_time_s(predicted)).sel(at) / 8e-9
    assert abs(float(carried) / (2 * 7 / 8 * gradients) - 1) < 0.01
    assert float(utilisation_gbps(predicted).sel(at | {"gpus": 2})) == 0


def test_draws_surround_the_prediction() -> None:
    point = iteration_time_s(predict_scaling(experiment("strong_scaling"), *_WHAT))
    draws = iteration_time_s(draw_scaling(experiment("strong_scaling"), *_WHAT))
    low, high = draws.quantile(0.05, "resample"), draws.quantile(0.95, "resample")
    assert bool(((low < point) & (point < high)).all())
