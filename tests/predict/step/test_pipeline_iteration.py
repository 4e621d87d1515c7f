"""Iterations of pipelines: the closed forms at their limits, phases, and exact bytes."""

from dataclasses import replace

import numpy as np
import pytest
from examples import (
    CALIBRATED,
    GPT,
    IDEAL,
    machine_of,
    with_free_links,
    with_free_memory,
    without_head,
)
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.models.papers import Family, Shape, model
from repro.catalog.phases import P2P_TIMERS
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.protocols import protocol
from repro.predict.network.machine import machine
from repro.predict.step.iteration import predict_phases
from repro.predict.step.pipeline_iteration import PHASES, parameters_by_stage, predict_pipeline
from repro.predict.workload import Array, Plan, Workload, workload

_A = machine(cluster("pinnacles"), CALIBRATED, protocol("tcp"))
_B = machine_of("cluster-b")
_NIC = 9.41e9 / 8
_ALL_GATHER = "parameter all-gather"


def _plan(stages: int, replicas: int = 1, micro_batches: int = 8) -> Plan:
    return Plan(
        global_batch_size=4 * micro_batches * replicas,
        micro_batch_size=4,
        pipeline_parallel=stages,
        data_parallel=replicas,
    )


def _of(name: str, plan: Plan) -> Workload:
    entry = model(name)
    return workload(entry.family, entry.full, plan)


def _phase(phases_s: Array, name: str) -> Array:
    values: Array = phases_s[:, PHASES.index(name)]
    return values


@pytest.mark.parametrize("name", ["gpt2-medium", "bert-large", "t5-large"])
@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_one_stage_is_data_parallelism(name: str, replicas: int) -> None:
    w = _of(name, _plan(1, replicas))
    found = predict_pipeline(w, _A, CALIBRATED)
    closed = predict_phases(w.flat()[0], _A, CALIBRATED)
    # The closed form leaves out the heads' parameters and the decoder's embedding.
    assert found.time_s == pytest.approx(closed.iteration_time_s[0], rel=5e-3)
    for phase in ("gradient sync", "optimizer", "straggler wait"):
        expected = getattr(closed, phase.replace(" ", "_"))
        assert _phase(found.phases_s, phase) == pytest.approx(expected, rel=1e-2), phase
    for phase in ("forward compute", "backward compute"):
        expected = getattr(closed, phase.replace(" ", "_"))
        accuracy = 1e-3 if name == "t5-large" else 1e-12
        assert _phase(found.phases_s, phase) == pytest.approx(expected, rel=accuracy), phase
    assert (found.timeline.timer_s == 0).all() and found.sent_bytes.tolist() == [0.0]


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 3, 8, 20])
def test_uniform_stages_are_the_closed_form(stages: int, micro_batches: int) -> None:
    # No logits, no embedding and free links: all stages are the same.
    bare = CALIBRATED.model_copy(update={"hop_s": 0.0, "collective_latency_s": 0.0})
    free = with_free_memory(with_free_links(_B))
    w = without_head(workload("gpt", GPT, _plan(stages, micro_batches=micro_batches)))
    found = predict_pipeline(w, free, bare)
    closed = predict_phases(w.flat()[0], free, bare)
    assert found.time_s == pytest.approx(closed.iteration_time_s[0], rel=1e-9)


@pytest.mark.parametrize("name", ["gpt2-medium", "bert-large"])
@pytest.mark.parametrize("stages", [4, 8])
def test_real_pipelines_are_near_the_closed_form(name: str, stages: int) -> None:
    # It counts a message for each pass, of which the schedule hides some.
    fast = machine(cluster("pinnacles"), CALIBRATED, protocol("rdma"))
    w = _of(name, _plan(stages, micro_batches=32))
    found = predict_pipeline(w, fast, CALIBRATED).time_s
    assert found == pytest.approx(
        predict_phases(w.flat()[0], fast, CALIBRATED).iteration_time_s[0], rel=0.05
    )


@given(st.data())
def test_phases_add_up_on_every_stage(data: st.DataObject) -> None:
    family: Family = data.draw(st.sampled_from(["gpt", "bert", "t5"]))
    stages = data.draw(st.sampled_from([1, 2, 4, 6]))
    replicas, micro_batches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    shape = Shape(**{**GPT.model_dump(), "decoder_sequence_length": 128})
    plan = replace(
        _plan(stages, replicas, micro_batches),
        distributed_optimizer=data.draw(st.booleans()),
        recompute=data.draw(st.sampled_from(["none", "selective", "full"])),
    )
    where = data.draw(st.sampled_from([_A, _B]))
    found = predict_pipeline(workload(family, shape, plan), where, CALIBRATED)
    assert found.phases_s.shape == (stages, len(PHASES))
    assert (found.phases_s >= 0).all()
    np.testing.assert_allclose(found.phases_s.sum(axis=1), found.time_s, rtol=1e-12)


def test_phases_of_messages_are_megatrons_timers() -> None:
    found = predict_pipeline(_of("gpt2-medium", _plan(8)), _A, CALIBRATED)
    timers = dict(zip(P2P_TIMERS, np.moveaxis(found.timeline.timer_s, 1, 0), strict=True))
    for phase, two in (
        ("forward receive", ("forward-recv", "backward-send-forward-recv")),
        ("backward receive", ("backward-recv", "forward-send-backward-recv")),
        ("send", ("forward-send", "backward-send")),
    ):
        expected = timers[two[0]] + timers[two[1]]
        np.testing.assert_array_equal(_phase(found.phases_s, phase), expected)


def test_the_papers_timers_are_fill_and_drain() -> None:
    # Free links: receiving the first micro batch is the others' forward pass, the embeddings'
    # sync the others' backward pass.
    free = CALIBRATED.model_copy(update={"hop_s": 0.0, "straggler_fraction": 0.0})
    w = _of("gpt2-medium", _plan(8, micro_batches=1))
    found = predict_pipeline(w, with_free_links(_A), free)
    m, host = 1, CALIBRATED.host_micro_batch_s
    forward = _phase(found.phases_s, "forward compute") / m + host
    backward = _phase(found.phases_s, "backward compute") / m
    recv = found.timeline.timer_s[-1, P2P_TIMERS.index("forward-recv")]
    assert recv == pytest.approx(forward[:-1].sum(), rel=1e-12)
    assert _phase(found.phases_s, "straggler wait")[-1] == pytest.approx(backward[:-1].sum())


def test_stragglers_wait_longer_with_more_gpus() -> None:
    found = predict_pipeline(_of("gpt2-medium", _plan(8)), _A, CALIBRATED)
    busy = found.timeline.end_s.max()
    expected = CALIBRATED.straggler_fraction * np.log(8) * busy
    # The first stage ends last.
    assert _phase(found.phases_s, "straggler wait")[0] == pytest.approx(expected, rel=1e-12)


def test_replicas_share_the_nics_in_the_embedding_sync() -> None:
    table = 2 * 50304 * 1024
    latency = CALIBRATED.collective_latency_s * 2**CALIBRATED.latency_exponent + 2 * 25e-6
    one = predict_pipeline(_of("gpt2-medium", _plan(4)), _A, CALIBRATED)
    assert _phase(one.phases_s, "embedding sync") == pytest.approx(table / _NIC + latency)
    two = predict_pipeline(_of("gpt2-medium", _plan(4, 2)), _A, CALIBRATED)
    # The first and the last stage have the largest gradients, the first the positions, too.
    gradients = _phase(two.phases_s, "gradient sync")
    sync = _phase(two.phases_s, "embedding sync") + gradients - gradients.max()
    assert sync == pytest.approx(2 * table / _NIC + latency)


def test_stages_synchronise_their_own_gradients() -> None:
    w = _of("gpt2-medium", _plan(2, 4))
    found = predict_pipeline(w, machine(cluster("pinnacles"), IDEAL, protocol("tcp")), IDEAL)
    # Two nodes each: 2 (4-1)/4 S over a NIC, and a tree's latency of one doubling.
    expected = 2 * 3 / 4 * 2 * parameters_by_stage(w) / _NIC + 2 * 25e-6
    assert _phase(found.phases_s, "gradient sync") == pytest.approx(expected, rel=1e-12)


def test_a_distributed_optimizer_moves_the_same_bytes_in_two_halves() -> None:
    plan = _plan(2, 4)
    plain = predict_pipeline(_of("gpt2-medium", plan), _A, IDEAL)
    sharded = predict_pipeline(
        _of("gpt2-medium", replace(plan, distributed_optimizer=True)), _A, IDEAL
    )
    assert sharded.nic_sent_bytes == pytest.approx(plain.nic_sent_bytes, rel=1e-12)
    whole = _phase(plain.phases_s, "gradient sync").max()
    halves = [_phase(sharded.phases_s, name).max() for name in ("gradient sync", _ALL_GATHER)]
    assert halves == pytest.approx([whole / 2] * 2, rel=1e-3)
    assert not _phase(plain.phases_s, _ALL_GATHER).any()
    steps = [_phase(one.phases_s, "optimizer") for one in (plain, sharded)]
    assert steps[1] == pytest.approx(steps[0] / 4, rel=1e-12)


def test_bytes_of_a_pipeline_over_four_nodes() -> None:
    found = predict_pipeline(_of("gpt2-medium", _plan(8)), _A, CALIBRATED)
    message = 8 * 2 * 4 * 1024 * 1024
    assert found.sent_bytes.tolist() == [message, *[2 * message] * 6, message]
    table = 2 * 50304 * 1024
    # Stages 1-2, 3-4 and 5-6 cross nodes, both ways; the embeddings' two ends send a table each.
    expected = [message + table, 2 * message, 2 * message, message + table]
    assert found.nic_sent_bytes.tolist() == expected
    assert found.nic_received_bytes.tolist() == expected


def test_bytes_of_an_encoder_decoder_over_two_nodes() -> None:
    found = predict_pipeline(_of("t5-large", _plan(4)), _A, CALIBRATED)
    sequences = 8 * 2 * 4 * 1024
    encoder, decoder = 512 * sequences, 640 * sequences
    assert found.sent_bytes.tolist() == [encoder, 2 * encoder, encoder + decoder, decoder]
    # A ring of three copies, 4/3 of the table each, crosses from stage 0 to 2 and from 3 to 0.
    ring = 4 / 3 * 2 * 30592 * 1024
    assert found.nic_sent_bytes == pytest.approx([encoder + ring] * 2)


def test_bytes_of_replicas() -> None:
    w = _of("gpt2-medium", _plan(2, 4))
    found = predict_pipeline(w, _A, CALIBRATED)
    message, table = 8 * 2 * 4 * 1024 * 1024, 2 * 50304 * 1024
    assert found.sent_bytes.tolist() == [message, message]
    # Two ranks of a node: their messages and tables, and one crossing of the stage's ring.
    rings = 2 * 3 / 4 * 2 * np.repeat(parameters_by_stage(w), 2)
    assert found.nic_sent_bytes == pytest.approx(2 * message + 2 * table + rings)


def test_draws_are_predictions_of_their_own() -> None:
    factors = np.array([0.5, 1.0, 1.1])
    drawn = CALIBRATED.model_copy(
        update={
            "gemm_efficiency": CALIBRATED.gemm_efficiency * factors,
            "host_micro_batch_s": CALIBRATED.host_micro_batch_s / factors,
            "fabric_efficiency": CALIBRATED.fabric_efficiency * factors,
        }
    )
    entry = cluster("cluster-b")
    w = _of("bert-large", _plan(4, 2))
    together = predict_pipeline(w, machine(entry, drawn), drawn)
    assert together.time_s.shape == (3,)
    for index in range(3):
        alone = CALIBRATED.model_copy(
            update={name: float(np.broadcast_to(value, 3)[index]) for name, value in drawn}
        )
        one = predict_pipeline(w, machine(entry, alone), alone)
        assert together.time_s[index] == pytest.approx(one.time_s, rel=1e-12)
        np.testing.assert_allclose(together.phases_s[..., index], one.phases_s, rtol=1e-9)
