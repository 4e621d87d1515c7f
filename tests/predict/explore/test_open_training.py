"""Open models in an experiment, predicted: phases, closed forms of what is sent, memory."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.expert_volumes import all_to_all_bytes, held_parameters
from repro.catalog.models.open_models import open_model
from repro.catalog.models.volumes import ring_all_reduce_bytes
from repro.catalog.studies.selection import select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.errors import ReproError
from repro.predict.explore.experiments.configurations import compute_time
from repro.predict.explore.experiments.predicted import draw_experiment, predict_experiment

_DENSE, _MIXTURE = "tinyllama-1.1b", "olmoe-1b-7b"


@pytest.fixture(scope="module")
def predicted() -> xr.Dataset:
    chosen = select("weak_scaling", source="predicted", models=f"{_DENSE},{_MIXTURE},gpt2-large")
    return predict_experiment(chosen).squeeze(drop=True)


def test_phases_add_up(predicted: xr.Dataset) -> None:
    total = predicted["phase_time_s"].sum("phase")
    assert np.allclose(total, predicted["iteration_time_s"])
    exchanges = predicted["phase_time_s"].sel(phase=["forward all-to-all", "backward all-to-all"])
    assert (exchanges.sel(model=_MIXTURE) > 0).all()
    assert (exchanges.sel(model=[_DENSE, "gpt2-large"]) == 0).all()


def test_computing_is_that_of_the_similarity_rule(predicted: xr.Dataset) -> None:
    passes = predicted["phase_time_s"].sel(phase=["forward compute", "backward compute"])
    for name in (_DENSE, _MIXTURE):
        found = float(passes.sel(model=name, gpus=4, protocol="rdma").sum("phase"))
        whole = compute_time(open_model(name), cluster("pinnacles"), 4)
        assert found == pytest.approx(whole.value_s)
        assert whole.low_s < whole.value_s < whole.high_s
        assert 0.2 < whole.mfu < 0.8


@pytest.mark.parametrize("name", ["ipoib", "tcp"])
def test_the_fabric_carries_the_closed_forms_at_the_protocols_rate(
    predicted: xr.Dataset, name: str
) -> None:
    rate = protocol(name).effective_gbps * 1e9 / 8
    shape = open_model(_MIXTURE).shape
    common, own = (2 * count for count in held_parameters(shape, 4))
    at = predicted.sel(model=_MIXTURE, protocol=name, gpus=8)
    times = at["phase_time_s"].sel(phase=["gradient sync", "forward all-to-all"]).values
    # A ring through all nodes; and two of one rank on each of two nodes.
    gradients = ring_all_reduce_bytes(common, 8) + 2 * ring_all_reduce_bytes(own, 2)
    # Two ranks of a node send half of their choices to the other node; backward is the other half.
    exchange = 2 * all_to_all_bytes(shape, 4, 4, 2) * 2 / 3 / 2
    assert times == pytest.approx([gradients / rate, exchange / rate], rel=0.02)
    carried = float(at["rx_iteration_full_scale_gbps"] * at["iteration_time_s"]) * 1e9 / 8
    assert carried == pytest.approx(gradients + 2 * exchange, rel=0.01)


def test_what_does_not_fit_says_so(predicted: xr.Dataset) -> None:
    full = predicted["out_of_memory"].sel(protocol="rdma")
    assert (full.sel(model=_DENSE) == 0).all()
    # 6.9 billion parameters, the experts in four parts: 2.1 billion of 16 bytes and activations.
    assert (full.sel(model=_MIXTURE) == 1).all()
    memory = predicted["memory_bytes"].sel(protocol="rdma", model=_MIXTURE, gpus=8)
    assert float(memory) > 16 * sum(held_parameters(open_model(_MIXTURE).shape, 4))


def test_draws_of_the_network_have_their_dimension() -> None:
    chosen = select("weak_scaling", models=[_MIXTURE], gpus=[4], protocol="rdma")
    draws = draw_experiment(chosen)
    assert draws.sizes["resample"] > 1
    assert draws["iteration_time_s"].notnull().all()


@pytest.mark.parametrize("name", ["model_parallelism", "gpt350m", "data_batches"])
def test_where_they_cannot_be_trained_they_are_unknown(name: str) -> None:
    with pytest.raises(ReproError, match=r"unknown model 'tinyllama-1\.1b'; choose from"):
        select(name, models=_DENSE)
    with pytest.raises(ReproError, match="unknown model 'gpt-oss-20b'"):
        select("weak_scaling", models="gpt-oss-20b")
