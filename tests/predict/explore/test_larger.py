"""Weak scaling beyond the papers: what fits, and what scale costs."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.models.volumes import parameters
from repro.catalog.studies.larger_models import LargerModels, read_larger_models
from repro.catalog.systems.clusters import cluster
from repro.predict.explore.jobs.larger import predict_larger
from repro.predict.network.machine import machine
from repro.predict.parameters import calibration
from repro.predict.step.memory import FRAMEWORK_BYTES
from repro.predict.step.pipeline_iteration import PHASES, memory_by_stage_bytes, predict_pipeline
from repro.predict.workload import Plan, workload

_LIMIT = 40e9


@pytest.fixture(scope="module")
def study() -> LargerModels:
    return read_larger_models()


@pytest.fixture(scope="module")
def found(study: LargerModels) -> xr.Dataset:
    return predict_larger(study)


def _held_bytes(study: LargerModels, name: str, stages: int, micro_batch_size: int) -> float:
    """On the fewest GPUs."""
    replicas = study.gpus[0] // stages
    plan = Plan(
        global_batch_size=micro_batch_size * study.micro_batches * replicas,
        micro_batch_size=micro_batch_size,
        data_parallel=replicas,
        pipeline_parallel=stages,
        recompute="selective",
        distributed_optimizer=True,
    )
    w = workload("gpt", study.models[name].shape, plan)
    return float(memory_by_stage_bytes(w).max()) + FRAMEWORK_BYTES


@pytest.mark.parametrize(
    ("name", "published"),
    # Table 2.1 of Brown et al., 2020.
    [("gpt3-1.3b", 1.3e9), ("gpt3-2.7b", 2.7e9), ("gpt3-6.7b", 6.7e9), ("gpt3-13b", 13e9)],
)
def test_shapes_have_the_published_sizes(study: LargerModels, name: str, published: float) -> None:
    assert parameters("gpt", study.models[name].shape) == pytest.approx(published, rel=0.03)


def test_splits_are_the_smallest_that_fit(study: LargerModels, found: xr.Dataset) -> None:
    assert bool((found["memory_bytes"] <= _LIMIT).all())
    for name in study.models:
        at = found.sel(model=name, gpus=study.gpus[0])
        stages, micro_batch = int(at["pipeline_parallel"]), int(at["micro_batch_size"])
        for fewer in (count for count in study.pipeline_parallel if count < stages):
            assert _held_bytes(study, name, fewer, 1) > _LIMIT, f"{name} fits {fewer} stages"
        if micro_batch < max(study.micro_batch_size):
            assert _held_bytes(study, name, stages, micro_batch + 1) > _LIMIT, name
        assert float(at["memory_bytes"]) == _held_bytes(study, name, stages, micro_batch)


def test_the_batch_grows_with_the_gpus(study: LargerModels, found: xr.Dataset) -> None:
    per_gpu = found["global_batch_size"] / found["gpus"]
    assert bool((per_gpu == per_gpu.isel(gpus=0)).all())
    assert bool((per_gpu.sel(model="gpt2-large") == 12).all())
    one = found.sel(model="gpt3-13b", gpus=1024)
    replicas = 1024 / float(one["pipeline_parallel"])
    expected = study.micro_batches * float(one["micro_batch_size"]) * replicas
    assert float(one["global_batch_size"]) == expected


def test_scale_costs_time(found: xr.Dataset) -> None:
    assert bool((found["weak_scaling_efficiency"].isel(gpus=0) == 1).all())
    assert bool((found["weak_scaling_efficiency"].diff("gpus") < 0).all())
    assert bool((found["communication_fraction"].diff("gpus") > 0).all())
    within = (found["communication_fraction"] > 0) & (found["communication_fraction"] < 1)
    assert bool(within.all())
    # The batch grows with the GPUs: tokens per second and GPU fall as the efficiency does.
    rate = found["tokens_per_s_per_gpu"]
    xr.testing.assert_allclose(
        rate / rate.isel(gpus=0, drop=True), found["weak_scaling_efficiency"], rtol=1e-12
    )


def test_the_interval_surrounds_the_time(found: xr.Dataset) -> None:
    time = found["iteration_time_s"]
    assert bool((found["iteration_time_low_s"] < time).all())
    assert bool((time < found["iteration_time_high_s"]).all())


def test_the_papers_run_is_figure_7s(found: xr.Dataset) -> None:
    entry = cluster("cluster-b")
    calibrated = calibration(entry.calibration).parameters
    plan = Plan(
        global_batch_size=192,
        micro_batch_size=12,
        data_parallel=16,
        recompute="selective",
        distributed_optimizer=True,
    )
    w = workload("gpt", model("gpt2-large").full, plan)
    alone = predict_pipeline(w, machine(entry, calibrated), calibrated)
    at = found.sel(model="gpt2-large", gpus=16)
    assert float(at["iteration_time_s"]) == alone.time_s
    assert float(at["tokens_per_s_per_gpu"]) == pytest.approx(192 * 1024 / 16 / alone.time_s)


def test_communication_is_what_is_not_the_gpus_own_work(
    study: LargerModels, found: xr.Dataset
) -> None:
    at = found.sel(model="gpt3-13b", gpus=64)
    entry = cluster("cluster-b")
    calibrated = calibration(entry.calibration).parameters
    plan = Plan(
        global_batch_size=float(at["global_batch_size"]),
        micro_batch_size=float(at["micro_batch_size"]),
        data_parallel=8,
        pipeline_parallel=8,
        recompute="selective",
        distributed_optimizer=True,
    )
    w = workload("gpt", study.models["gpt3-13b"].shape, plan)
    alone = predict_pipeline(w, machine(entry, calibrated), calibrated)
    phases = xr.DataArray(alone.phases_s, {"phase": list(PHASES)}, ("stage", "phase"))
    own = phases.sel(phase=["forward compute", "backward compute", "optimizer", "other"])
    # A mean over stages, of which the last has most to compute.
    expected = 1 - float(own.sum("phase").mean("stage")) / alone.time_s
    assert float(at["communication_fraction"]) == pytest.approx(expected, rel=1e-9)


def test_models_that_do_not_fit_are_left_out(study: LargerModels) -> None:
    one_stage = study.model_copy(update={"pipeline_parallel": (1,), "gpus": (16, 512)})
    found = predict_larger(one_stage)
    # 6 bytes a parameter and 12 sharded: 6.7 billion on one GPU are more than 40 GB.
    for name in ("gpt3-6.7b", "gpt3-13b"):
        assert bool(found.sel(model=name).drop_vars("label").to_dataarray().isnull().all())
    assert bool(found["iteration_time_s"].sel(model="gpt3-2.7b").notnull().all())


def test_a_model_that_needs_more_gpus_starts_there(study: LargerModels) -> None:
    # Four stages hold 13 billion once the optimizer is sharded among enough replicas.
    four = study.model_copy(update={"pipeline_parallel": (4,), "gpus": (16, 64, 128)})
    found = predict_larger(four).sel(model="gpt3-13b")
    assert np.isnan(found["iteration_time_s"].values).tolist() == [True, False, False]
    assert found["weak_scaling_efficiency"].values[1] == 1
