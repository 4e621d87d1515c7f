"""The papers' quantities on a made-up experiment whose answers are known in closed form."""

from statistics import NormalDist

import numpy as np
import pytest
import xarray as xr
from made_up import TIME_SCALE

from repro.observe.precision import half_width
from repro.results.metrics import (
    communication_fraction,
    draw_sample,
    estimate,
    iteration_time_s,
    phase_time_s,
    resample,
    speed_up,
    strong_efficiency,
    support,
    utilisation_gbps,
    weak_efficiency,
)

# Before scaling, the made-up experiment computes for 0.1 s and syncs 2(n-1)/n x 10 Gbit at 100, 25
# and 10 Gbit/s.
_SYNC = {"rdma": 0.175, "ipoib": 0.7, "tcp": 1.75}


def test_communication_fraction(made_up_results: xr.Dataset) -> None:
    fraction = communication_fraction(made_up_results).sel(gpus=8, model="bert-large").squeeze()
    for protocol, sync in _SYNC.items():
        assert float(fraction.sel(protocol=protocol)) == pytest.approx(sync / (sync + 0.1))


def test_speed_ups(made_up_results: xr.Dataset) -> None:
    sync = phase_time_s(made_up_results, "gradient sync").sel(gpus=8)
    assert speed_up(sync, "tcp", "rdma").values == pytest.approx(10)
    iteration = iteration_time_s(made_up_results).sel(gpus=8)
    assert speed_up(iteration, "ipoib", "rdma").values == pytest.approx(0.8 / 0.275)


def test_efficiencies() -> None:
    times = xr.DataArray([4.0, 2.0, 2.0], coords={"gpus": [2, 4, 8]}, dims="gpus")
    assert float(strong_efficiency(times, 2, 4)) == 1.0
    assert float(strong_efficiency(times, 2, 8)) == 0.5
    assert float(weak_efficiency(times, 2, 8)) == 2.0


def test_utilisation(made_up_results: xr.Dataset) -> None:
    rate = utilisation_gbps(made_up_results).sel(gpus=8, model="bert-large", protocol="tcp")
    assert float(rate.squeeze()) == pytest.approx(20 * 0.5 / 1.85, rel=0.01)


def _iteration(results: xr.Dataset) -> xr.DataArray:
    time = iteration_time_s(results).sel(gpus=2, protocol="tcp", model="bert-large")
    return TIME_SCALE * time.squeeze("source")


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 30])
def test_the_interval_covers_the_mean_of_noisy_samples(
    made_up_results: xr.Dataset, count: int
) -> None:
    generator, tries = np.random.default_rng(3), 100
    one = made_up_results.sel(gpus=[2], protocol=["tcp"], model=["bert-large"])
    covered = 0
    for _ in range(tries):
        noise = xr.DataArray(generator.normal(1.0, 0.1, count), dims="iteration")
        sample = one.isel(iteration=[0] * count).drop_vars("iteration")
        sample["iteration_time_s"] = sample["iteration_time_s"] * 0 + noise
        sample = sample.assign_coords(iteration=range(count))
        result = estimate(draw_sample(sample), _iteration)
        assert result.low <= result.value <= result.high
        assert result.value == pytest.approx(float(noise.mean()))
        covered += result.low <= 1.0 <= result.high
    # Draws alone would cover it in 76 % of samples of three.
    assert covered / tries == pytest.approx(0.95, abs=0.06)


def test_resamples_vary_as_means_of_few_iterations_do(made_up_results: xr.Dataset) -> None:
    results = made_up_results.copy()
    results["iteration_time_s"] = results["iteration_time_s"] * 0 + results["iteration"]
    resampled = resample(results)["iteration_time_s"].sel(gpus=2, protocol="tcp", model="t5-large")
    means = resampled.isel(rank=0).squeeze().values
    count = results.sizes["iteration"]
    assert means.mean() == pytest.approx((count - 1) / 2, abs=0.1)
    half = NormalDist().inv_cdf(0.975) * means.std()
    assert half == pytest.approx(half_width(np.arange(float(count)).tolist()), rel=0.1)


def test_iterations_that_were_not_recorded_are_not_drawn(made_up_results: xr.Dataset) -> None:
    """A configuration that ended early has the intervals that it has by itself."""
    recorded = 4
    early = {"gpus": 2, "protocol": "tcp", "model": "t5-large", "source": "testbed"}
    results = made_up_results.copy(deep=True)
    varied = results["iteration_time_s"] * 0 + results["iteration"]
    results["iteration_time_s"] = varied.where(
        ~((varied["iteration"] >= recorded) & (varied["gpus"] == 2) & (varied["protocol"] == "tcp"))
    )
    joint = resample(results)["iteration_time_s"].sel(early).isel(rank=0).squeeze().values
    alone = results.isel(iteration=slice(recorded))
    own = resample(alone)["iteration_time_s"].sel(early).isel(rank=0).squeeze().values
    np.testing.assert_allclose(joint, own)
    assert joint.mean() == pytest.approx((recorded - 1) / 2, abs=0.1)


def test_support_is_the_share_of_resamples_in_which_a_statement_holds(
    made_up_results: xr.Dataset,
) -> None:
    noise = xr.DataArray([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], dims="iteration")
    results = made_up_results.copy()
    results["iteration_time_s"] = results["iteration_time_s"] * 0 + noise
    sample = draw_sample(results)
    assert support(sample, lambda r: _iteration(r) > -1.0) == 1.0
    assert support(sample, lambda r: _iteration(r) > 2.0) == 0.0
    # More ones than zeros in six draws: 22/64.
    assert support(sample, lambda r: _iteration(r) > 0.5) == pytest.approx(22 / 64, abs=0.05)
