"""The similarity rule: equal dimensionless numbers, for links and for memory."""

import pytest

from repro.catalog.models.expert_volumes import all_to_all_bytes, held_parameters
from repro.catalog.models.open_models import open_model
from repro.catalog.models.papers import model, read_models
from repro.catalog.models.trainable import trainable_models
from repro.catalog.models.volumes import gradient_bytes, ring_all_reduce_bytes
from repro.catalog.systems.clusters import cluster
from repro.experiments.similarity import FASTEST_LINK_GBPS, derive, memory_limit_bytes
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.step.pipeline_iteration import memory_by_stage_bytes
from repro.predict.workload import Plan, workload

_A, _B = cluster("pinnacles"), cluster("cluster-b")


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("name", list(read_models()))
def test_communication_over_computation_is_the_same_at_both_scales(
    name: str, pipeline: bool
) -> None:
    kind = model(name)
    similarity = derive(
        name,
        kind,
        _A,
        pipeline=pipeline,
        micro_batch_size=4,
        compute_testbed_s=0.3,
        compute_full_s=0.1,
    )
    full, small = kind.full_size(pipeline), kind.testbed_size(pipeline)
    rate = similarity.rates_gbps(_A, 20.0)["fabric"]
    if pipeline:
        volumes = [4 * s.sequence_length * s.hidden_size for s in (full, small)]
    else:
        volumes = [gradient_bytes(kind.family, s, 1) for s in (full, small)]
    # fp16 at full scale, fp32 on the testbed.
    assert 2 * volumes[0] / (20.0 * 0.1) == pytest.approx(4 * volumes[1] / (rate * 0.3))


@pytest.mark.parametrize("name", [n for n in trainable_models() if n not in read_models()])
def test_open_models_send_for_as_long_in_units_of_computing(name: str) -> None:
    kind = open_model(name)
    assert kind.testbed is not None
    similarity = derive(
        name,
        kind,
        _A,
        pipeline=False,
        micro_batch_size=4,
        compute_testbed_s=0.3,
        compute_full_s=0.1,
    )
    rate = similarity.rates_gbps(_A, 20.0)["fabric"]
    many, ranks = 10**9, kind.expert_parallel
    sent = [
        ring_all_reduce_bytes(size * sum(held_parameters(shape, ranks)), many)
        + all_to_all_bytes(shape, 4, ranks, size)
        for shape, size in ((kind.shape, 2), (kind.testbed, 4))
    ]
    assert sent[0] / (20.0 * 0.1) == pytest.approx(sent[1] / (rate * 0.3), rel=1e-6)
    # What is exchanged is the same part of it, as lengths of sequences were chosen.
    parts = [
        all_to_all_bytes(shape, 4, ranks, size) / all_bytes
        for (shape, size), all_bytes in zip(((kind.shape, 2), (kind.testbed, 4)), sent, strict=True)
    ]
    assert parts[1] == pytest.approx(parts[0], abs=0.02)
    assert (parts[0] > 0.1) == bool(kind.shape.experts)


@pytest.mark.parametrize("name", list(read_models()))
def test_one_rate_is_right_for_all_messages_of_a_pipeline(name: str) -> None:
    """Activations, embedding table and gradients shrink by nearly the same factor."""
    kind = model(name)
    full, small = kind.full_size(pipeline=True), kind.testbed_size(pipeline=True)
    activations = (
        full.sequence_length * full.hidden_size / (small.sequence_length * small.hidden_size)
    )
    table = full.vocabulary_size * full.hidden_size / (small.vocabulary_size * small.hidden_size)
    gradients = gradient_bytes(kind.family, full, 1) / gradient_bytes(kind.family, small, 1)
    assert table == pytest.approx(activations, rel=0.15)
    assert gradients == pytest.approx(activations, rel=0.15)


def test_links_faster_than_this_machine_shapes_are_capped() -> None:
    similarity = derive(
        "gpt2-large",
        model("gpt2-large"),
        _B,
        pipeline=False,
        micro_batch_size=12,
        compute_testbed_s=0.8,
        compute_full_s=0.5,
    )
    rates = similarity.rates_gbps(_B, 77.0)
    assert rates["node"] == FASTEST_LINK_GBPS
    assert rates["fabric"] == pytest.approx(77.0 * similarity.rate_scale)
    assert rates["node"] > 5 * rates["fabric"]


@pytest.mark.parametrize("name", list(read_models()))
def test_as_many_sequences_fit_as_on_the_real_gpu(name: str) -> None:
    kind = model(name)
    fixed, each = 10e6, 2e6
    allowance = memory_limit_bytes(
        kind, _A, pipeline=False, stages=1, fixed_bytes=fixed, sequence_bytes=each
    )
    limit = _A.device.memory_bytes
    for micro_batch in range(1, 65):
        one, _ = workload(kind.family, kind.full, Plan(micro_batch, micro_batch)).flat()
        fits = float(memory(one).total[0]) + FRAMEWORK_BYTES <= limit
        assert (fixed + micro_batch * each <= allowance) == fits, micro_batch


def test_a_stage_has_room_for_nearly_as_many_sequences_as_the_real_one() -> None:
    kind = model("gpt2-large")
    fixed, each = 40e6, 7e6
    allowance = memory_limit_bytes(
        kind, _A, pipeline=True, stages=8, fixed_bytes=fixed, sequence_bytes=each
    )
    shape = kind.full_size(pipeline=True)
    largest = max(
        micro_batch
        for micro_batch in (1, 2, 4, 8, 16)
        if float(
            memory_by_stage_bytes(
                workload(kind.family, shape, Plan(64, micro_batch, pipeline_parallel=8))
            ).max()
        )
        + FRAMEWORK_BYTES
        <= _A.device.memory_bytes
    )
    assert largest <= allowance / each < 3 * largest
