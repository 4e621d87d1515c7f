"""Experiments predicted in the schema of the measured ones."""

import numpy as np
import pytest
import xarray as xr

from repro.catalog.models.papers import model
from repro.catalog.phases import P2P_TIMERS
from repro.catalog.studies.experiments import Experiment, Profile, experiment
from repro.catalog.studies.selection import Selection, select
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.predict.explore.experiments.predicted import (
    draw_experiment,
    predict_experiment,
    predict_with,
)
from repro.predict.network.machine import machine
from repro.predict.parameters import calibration
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.step.pipeline_iteration import PHASES, predict_pipeline
from repro.predict.workload import Plan, workload
from repro.results.metrics import communication_fraction, iteration_time_s, utilisation_gbps

_MODELS = ("gpt2-medium", "t5-large")


def _selected(name: str, **changes: object) -> Selection:
    parts = {"source": "predicted", "models": _MODELS} | changes
    return select(name, **parts)  # type: ignore[arg-type]


def _pipelines(**changes: object) -> xr.Dataset:
    found = predict_experiment(_selected("model_parallelism", **changes))
    return found.squeeze("source").isel(iteration=0)


def test_metrics_work_on_predictions() -> None:
    predicted = predict_experiment(_selected("weak_scaling", gpus=(2, 8)))
    assert predicted.sizes["rank"] == 1 and predicted.sizes["node"] == 1
    assert np.allclose(
        predicted["phase_time_s"].sum("phase"), predicted["iteration_time_s"], rtol=1e-6
    )
    assert iteration_time_s(predicted).dims == ("source", "model", "protocol", "gpus")
    shares = communication_fraction(predicted).sel(gpus=8, source="predicted")
    assert bool((shares.sel(protocol="tcp") > shares.sel(protocol="rdma")).all())


def test_a_nic_carries_the_rings_bytes() -> None:
    predicted = predict_experiment(_selected("weak_scaling", gpus=(2, 8)))
    gradients = 2 * 354_871_296  # GPT-2-Medium's parameters in fp16
    at = {"model": "gpt2-medium", "protocol": "tcp", "gpus": 8, "source": "predicted"}
    carried = (utilisation_gbps(predicted) * iteration_time_s(predicted)).sel(at) / 8e-9
    assert abs(float(carried) / (2 * 7 / 8 * gradients) - 1) < 0.01
    assert float(utilisation_gbps(predicted).sel(at | {"gpus": 2})) == 0


@pytest.mark.parametrize("name", ["strong_scaling", "model_parallelism"])
def test_draws_surround_the_prediction(name: str) -> None:
    selection = _selected(name, gpus=(2, 8))
    point = iteration_time_s(predict_experiment(selection))
    draws = iteration_time_s(draw_experiment(selection))
    low, high = draws.quantile(0.05, "resample"), draws.quantile(0.95, "resample")
    assert bool(((low < point) & (point < high)).all())


def test_data_parallelism_has_the_phases_of_pipelines_too() -> None:
    predicted = predict_experiment(_selected("weak_scaling"))
    assert predicted["phase"].values.tolist() == list(PHASES)
    messages = ["forward receive", "backward receive", "send", "embedding sync"]
    assert bool((predicted["phase_time_s"].sel(phase=messages) == 0).all())
    assert "p2p_time_s" not in predicted and "timer" not in predicted.dims


def test_a_pipelines_ranks_are_its_stages() -> None:
    predicted = _pipelines(protocol="tcp", gpus=(2, 8)).sel(protocol="tcp")
    assert predicted["rank"].values.tolist() == list(range(8))
    assert predicted["p2p_time_s"].dims[-1] == "timer"
    assert predicted["timer"].values.tolist() == list(P2P_TIMERS)
    calibrated = calibration("a100-megatron").parameters
    entry = model("gpt2-medium")
    plan = Plan(global_batch_size=128, micro_batch_size=4, pipeline_parallel=8)
    where = machine(cluster("pinnacles"), calibrated, protocol("tcp"))
    alone = predict_pipeline(workload("gpt", entry.full, plan), where, calibrated)
    on_8 = predicted.sel(model="gpt2-medium", gpus=8)
    np.testing.assert_array_equal(on_8["phase_time_s"], alone.phases_s)
    np.testing.assert_array_equal(on_8["p2p_time_s"], alone.timeline.timer_s)
    np.testing.assert_array_equal(on_8["p2p_wire_s"], alone.timeline.wire_s)
    np.testing.assert_array_equal(on_8["p2p_bytes_sent"], alone.sent_bytes)
    assert (on_8["iteration_time_s"] == alone.time_s).all()
    assert on_8["memory_bytes"] == alone.memory_bytes


def test_smaller_runs_have_fewer_ranks_and_nodes() -> None:
    predicted = _pipelines(gpus=(2, 8))
    on_2 = predicted.sel(gpus=2)
    for name in ("iteration_time_s", "phase_time_s", "p2p_time_s", "p2p_bytes_sent"):
        assert bool(on_2[name].sel(rank=[0, 1]).notnull().all()), name
        assert bool(on_2[name].sel(rank=slice(2, None)).isnull().all()), name
    rate = predicted["rx_iteration_full_scale_gbps"]
    # Two GPUs are one node, whose NIC has nothing to carry.
    assert bool((rate.sel(gpus=2, node=0) == 0).all())
    assert bool(rate.sel(gpus=2, node=slice(1, None)).isnull().all())
    assert bool((rate.sel(gpus=8) > 0).all())


def test_rates_of_a_pipeline_are_bytes_over_the_iteration() -> None:
    at = {"model": "gpt2-medium", "protocol": "rdma", "gpus": 8}
    predicted = _pipelines().sel(at)
    # 32 micro batches of 4 x 1024 x 1024 half-precision activations cross three boundaries, both
    # ways; the embedding table goes round once.
    message, table = 32 * 2 * 4 * 1024 * 1024, 2 * 50304 * 1024
    time = float(predicted["iteration_time_s"].sel(rank=7))
    carried = predicted["tx_iteration_full_scale_gbps"] * time / 8e-9
    assert carried.values == pytest.approx(
        [message + table, 2 * message, 2 * message, message + table]
    )


def test_phases_of_a_pipeline_add_up() -> None:
    predicted = _pipelines()
    summed = predicted["phase_time_s"].sum("phase", skipna=False)
    xr.testing.assert_allclose(summed, predicted["iteration_time_s"], rtol=1e-12)


def test_replicas_are_ranks_beside_each_other() -> None:
    predicted = _pipelines(gpus=8, pipeline_parallel=2)
    sent = predicted["p2p_bytes_sent"].sel(model="gpt2-medium", protocol="rdma", gpus=8)
    # 128 sequences on four replicas of two stages: each sends 8 micro batches of 4, one way.
    assert sent.values.tolist() == [8 * 2 * 4 * 1024 * 1024] * 8
    compute = predicted["phase_time_s"].sel(phase="forward compute", model="t5-large")
    by_rank = compute.sel(protocol="rdma", gpus=8).values
    assert np.ptp(by_rank[:4]) == 0 and np.ptp(by_rank[4:]) == 0 and by_rank[0] != by_rank[4]


def test_a_sweep_has_a_dimension_and_holes() -> None:
    selection = _selected("micro_batches", profile="predicted", models=("gpt2-large",))
    predicted = predict_experiment(selection).isel(source=0, model=0, iteration=0)
    assert predicted["iteration_time_s"].dims == ("protocol", "gpus", "micro_batch_size", "rank")
    time = predicted["iteration_time_s"].sel(rank=0, protocol="rdma")
    # 8 sequences a GPU: 16, 32 and 64.
    ran = time.notnull()
    assert ran.sum("micro_batch_size").values.tolist() == [5, 6, 7]
    assert ran.sel(gpus=8, micro_batch_size=64) and not ran.sel(gpus=8, micro_batch_size=128)
    memory_known = predicted["memory_bytes"].sel(protocol="rdma").notnull()
    xr.testing.assert_equal(memory_known.drop_vars("rank", errors="ignore"), ran.drop_vars("rank"))


def test_what_is_swept_to_the_limit_stops_there() -> None:
    predicted = predict_experiment(_selected("data_batches", models="all")).isel(source=0)
    at = {"protocol": "rdma", "gpus": 8}
    full, held = predicted["out_of_memory"].sel(at), predicted["memory_bytes"].sel(at)
    assert bool((full == (held > 0.99 * 40 * 2**30)).all())
    for name, most in {"gpt2-medium": 64, "gpt2-large": 32, "t5-large": 128}.items():
        entry = model(name)
        plan = Plan(global_batch_size=most, micro_batch_size=most // 8, data_parallel=8)
        flat = workload(entry.family, entry.full, plan).flat()[0]
        expected = memory(flat).total[0] + FRAMEWORK_BYTES
        assert held.sel(model=name, global_batch_size=most) == pytest.approx(expected, rel=1e-12)
        assert full.sel(model=name).values.tolist() == [
            float(batch > most) for batch in predicted["global_batch_size"].values
        ]
    for name in ("iteration_time_s", "phase_time_s", "rx_iteration_full_scale_gbps"):
        known = predicted[name].sel(at).notnull()
        assert bool((known == (full == 0)).all()), name


def test_an_experiment_without_a_limit_runs_on() -> None:
    # More than 40 GB with nothing recomputed: the paper's micro batch of 12 on cluster B.
    predicted = predict_experiment(_selected("cluster_b", models="all"))
    assert bool((predicted["out_of_memory"] == 1).all())
    assert bool(predicted["iteration_time_s"].notnull().all())


def test_a_cluster_without_protocols_has_its_fabrics_rate() -> None:
    selection = _selected("cluster_b", models="all")
    found = predict_experiment(selection)
    assert found["protocol"].values.tolist() == ["rdma"]
    calibrated = calibration("a100-megatron").parameters
    same = predict_with(selection, {"rdma": None}, calibrated)
    xr.testing.assert_equal(found.isel(source=0, drop=True), same)
    other = predict_with(selection, {"rdma": protocol("tcp")}, calibrated)
    assert bool((other["iteration_time_s"] > same["iteration_time_s"]).sel(gpus=16).all())


def test_stages_that_do_not_divide_layers_are_left_out() -> None:
    profile = Profile(
        models=("gpt2-medium", "t5-large"), gpus=(3, 4), warmup=1, iterations=1, most_iterations=1
    )
    entry = experiment("model_parallelism")
    odd = Experiment.model_validate(
        {**entry.model_dump(), "profiles": {"default": profile.model_dump()}}
        | {"sequences_per_gpu": None, "global_batch_size": 48}
    )
    selection = Selection(
        "odd", odd, "default", profile, "predicted", ("rdma",), profile.models, profile.gpus
    )
    time = predict_experiment(selection)["iteration_time_s"].isel(source=0, iteration=0, rank=0)
    ran = time.sel(protocol="rdma").notnull().to_pandas()
    # 24 layers on three stages; t5 needs an even number.
    assert ran.loc["gpt2-medium"].tolist() == [True, True]
    assert ran.loc["t5-large"].tolist() == [False, True]


def test_the_papers_reading_is_in_the_dataset() -> None:
    # What the last rank prints: the fill as forward receive, the drain in the embedding sync.
    predicted = _pipelines().sel(model="gpt2-medium", gpus=8, protocol="rdma")
    last, others = predicted.sel(rank=7), predicted.sel(rank=slice(0, 6))
    host = calibration("a100-megatron").parameters.host_micro_batch_s
    compute = others["phase_time_s"].sum("rank") / 32
    fill = float(compute.sel(phase="forward compute")) + 7 * host
    # Seven messages of 8 MiB, three of them over 81.9 Gbit/s.
    messages = float(last["p2p_time_s"].sel(timer="forward-recv")) - fill
    assert 3 * 0.8e-3 < messages < 7 * 0.9e-3
    drain = float(last["phase_time_s"].sel(phase="straggler wait"))
    stragglers = float(predicted["phase_time_s"].sel(phase="straggler wait", rank=0))
    # The last stage's own send is the first of the seven.
    passes = float(compute.sel(phase="backward compute"))
    assert drain - stragglers == pytest.approx(passes + messages * 6 / 7, rel=0.02)
