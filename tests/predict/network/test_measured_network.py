"""A cluster's measured network in the training-time model."""

import numpy as np
import pandas as pd
import pytest
from examples import CALIBRATED, GPT, rows

from repro.catalog.phases import PHASES
from repro.catalog.systems.clusters import Cluster, cluster
from repro.catalog.systems.protocols import protocol
from repro.errors import ReproError
from repro.predict.calibration.interval import (
    DEVIATIONS,
    draw_parameters,
    half_width,
    without_columns,
)
from repro.predict.network.collectives import collective_s, topology_s
from repro.predict.network.links import MOSTLY_TRANSFER, predict_collective, read_links
from repro.predict.network.machine import machine, strided
from repro.predict.parameters import calibration
from repro.predict.step.iteration import predict_phases
from repro.predict.step.memory import stage_parameters
from repro.predict.step.pipeline_iteration import parameters_by_stage, predict_pipeline
from repro.predict.workload import Plan, workload

_NAME = "big-red-200"
_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")


def big_red() -> Cluster:
    return cluster(_NAME)


def by_network(collective: str, size: float, ranks: int, nodes: int) -> float:
    """What the network's own model predicts."""
    entry = big_red()
    asked = {"gpu": entry.device.label, "network": entry.network, "collective": collective}
    row = pd.DataFrame([{**asked, "size_bytes": size, "ranks": ranks, "nodes": nodes}])
    return float(predict_collective(row).time_s.iloc[0])


@pytest.mark.parametrize("collective", _COLLECTIVES)
def test_measured_ranks_and_nodes_take_the_networks_time(collective: str) -> None:
    where = machine(big_red(), CALIBRATED)
    ranks, sizes = np.array([4.0, 8.0]), np.array([1e6, 7e8])
    found = collective_s(collective, sizes, strided(ranks, np.ones(2), where), CALIBRATED)
    wanted = [by_network(collective, 1e6, 4, 1), by_network(collective, 7e8, 8, 2)]
    assert found.tolist() == wanted


@pytest.mark.parametrize("collective", _COLLECTIVES)
def test_elsewhere_and_in_shared_nodes_it_is_a_ring(collective: str) -> None:
    where = machine(big_red(), CALIBRATED)
    # Not measured: 2 ranks, 16 ranks, and 8 and 4 ranks on more nodes, one or two in each.
    ranks, stride = np.array([2.0, 16.0, 8.0, 4.0]), np.array([1.0, 1.0, 2.0, 4.0])
    group = strided(ranks, stride, where)
    size = np.full(4, 7e8)
    found = collective_s(collective, size, group, CALIBRATED)
    assert found.tolist() == topology_s(collective, size, group, CALIBRATED).tolist()
    one = collective_s(collective, size, strided(np.ones(4), stride, where), CALIBRATED)
    assert one.tolist() == [0.0] * 4


def test_iterations_have_the_networks_collectives() -> None:
    plan = Plan(
        global_batch_size=32,
        micro_batch_size=4,
        data_parallel=8,
        distributed_optimizer=[False, True],
    )
    w = rows(plan)
    size = 2 * float(stage_parameters(w)[0])
    phases = predict_phases(w, machine(big_red(), CALIBRATED), CALIBRATED)
    reduce, scatter, gather = (by_network(name, size, 8, 2) for name in _COLLECTIVES)
    assert phases.gradient_sync.tolist() == [reduce, scatter]
    assert phases.parameter_all_gather.tolist() == [0.0, gather]


def test_the_fabrics_rate_is_the_measured_peak_between_nodes() -> None:
    fabric = machine(big_red(), CALIBRATED).levels[-1]
    (entry,) = [e for e in read_links().networks if e.network == big_red().network]
    assert fabric.measured
    assert fabric.bytes_per_s == 1e9 * entry.peaks_GBps[8, 2]
    # Of the port's nominal 12.5 GB/s.
    assert 0.7 < fabric.bytes_per_s / 12.5e9 < 0.85


def test_a_protocol_has_its_own_rate_instead() -> None:
    where = machine(big_red(), CALIBRATED, protocol("tcp"))
    assert where.network is None
    assert where.levels[-1].bytes_per_s == pytest.approx(9.41e9 / 8)


def test_draws_spread_as_the_networks_residuals() -> None:
    entry = big_red()
    drawn = draw_parameters(calibration(entry.calibration), entry)
    where = machine(entry, drawn)
    size, ranks = np.array([7e8]), np.array([8.0])
    times = collective_s("all_reduce", size, strided(ranks, np.ones(1), where), drawn)
    wanted = where.network.residuals[MOSTLY_TRANSFER].half_width / DEVIATIONS
    spread = np.log(times / by_network("all_reduce", 7e8, 8, 2))
    assert times.shape == (300, 1)
    assert spread.std() == pytest.approx(wanted, rel=0.15)
    other = cluster("cluster-b")
    assert draw_parameters(calibration(other.calibration), other).network_error == 0


def test_intervals_have_the_networks_residual_as_far_as_it_takes_time() -> None:
    entry = big_red()
    calibrated = calibration(entry.calibration)
    certain = calibrated.model_copy(
        update={"covariance": [[0.0] * len(calibrated.fitted)] * len(calibrated.fitted)}
    )
    w = rows(Plan(global_batch_size=32, micro_batch_size=4, data_parallel=[1, 8]))
    where = machine(entry, CALIBRATED)
    phases = predict_phases(w, where, CALIBRATED)
    share = phases.gradient_sync / phases.iteration_time_s
    own = half_width(w, entry, certain)
    without = half_width(w, entry.model_copy(update={"network": None}), certain)
    network = where.network.residuals[MOSTLY_TRANSFER].half_width
    assert own == pytest.approx(np.hypot(without, share * network), rel=1e-2)
    assert share[1] > 0.3 and share[0] == 0


def test_pipelines_synchronise_gradients_on_it() -> None:
    """Two stages of eight replicas: each stage's replicas are on two nodes of their own."""
    plan = Plan(global_batch_size=64, micro_batch_size=4, data_parallel=8, pipeline_parallel=2)
    w = workload("gpt", GPT, plan)
    entry = big_red()
    found = predict_pipeline(w, machine(entry, CALIBRATED), CALIBRATED)
    size = 2 * float(parameters_by_stage(w)[0])
    at = PHASES.index("gradient sync")
    assert found.phases_s[0, at] == by_network("all_reduce", size, 8, 2)
    drawn = without_columns(draw_parameters(calibration(entry.calibration), entry))
    certain = drawn.model_copy(update={"network_error": 0 * drawn.network_error})
    synced, same = (
        predict_pipeline(w, machine(entry, values), values).phases_s[0, at]
        for values in (drawn, certain)
    )
    assert np.log(synced / found.phases_s[0, at]).std() > 0.05
    assert same == pytest.approx(found.phases_s[0, at])


def test_a_network_that_was_not_calibrated_is_one_line() -> None:
    entry = big_red().model_copy(update={"network": "two tin cans"})
    with pytest.raises(ReproError, match="no network 'two tin cans' of GPU 'A100-SXM-40GB'") as e:
        machine(entry, CALIBRATED)
    assert "repro calibrate" in str(e.value) and "\n" not in str(e.value)
