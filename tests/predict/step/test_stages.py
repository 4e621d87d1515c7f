"""Stages of a pipeline: together they are the model, and each holds what 1F1B says."""

from dataclasses import replace

import numpy as np
import pytest
from examples import CALIBRATED, GPT, machine_of, rows

from repro.catalog.models.papers import Family, Shape, model
from repro.catalog.models.volumes import layer_parameters, parameters
from repro.errors import ReproError
from repro.predict.operators.kernels import Kernels
from repro.predict.step.memory import layer_activation_bytes, memory
from repro.predict.step.pipeline_iteration import (
    check_stages,
    embedding_stages,
    memory_by_stage_bytes,
    message_bytes,
    parameters_by_stage,
    stage_layers,
    stage_passes_s,
)
from repro.predict.workload import Plan, Workload, workload

_A100 = machine_of("pinnacles")
_KERNELS = Kernels(_A100.gpu, CALIBRATED)
_MODELS = pytest.mark.parametrize("name", ["gpt2-medium", "bert-large", "t5-large"])
_STAGES = pytest.mark.parametrize("stages", [2, 4, 8])


def _of(name: str, plan: Plan) -> Workload:
    entry = model(name)
    return workload(entry.family, entry.full, plan)


def _split(name: str, stages: int, micro_batches: int = 8) -> Workload:
    return _of(
        name,
        Plan(global_batch_size=4 * micro_batches, micro_batch_size=4, pipeline_parallel=stages),
    )


@_MODELS
@_STAGES
def test_stages_compute_what_one_gpu_computes(name: str, stages: int) -> None:
    whole = stage_passes_s(_split(name, 1), _A100, _KERNELS)
    parts = stage_passes_s(_split(name, stages), _A100, _KERNELS)
    for one, several in zip(whole, parts, strict=True):
        assert several.shape == (stages,)
        assert several.sum() == pytest.approx(one.sum(), rel=1e-12)


@_MODELS
@_STAGES
def test_stages_hold_the_models_parameters(name: str, stages: int) -> None:
    entry = model(name)
    h, v = entry.full.hidden_size, entry.full.vocabulary_size
    # A second copy of the word embeddings; t5's decoder has positions of its own, and a third copy
    # where it does not start on the last stage.
    copies = v * h
    if name == "t5-large":
        copies = 512 * h + v * h * (1 if stages == 2 else 2)
    expected = parameters(entry.family, entry.full)
    assert parameters_by_stage(_split(name, 1)).tolist() == [expected]
    assert parameters_by_stage(_split(name, stages)).sum() == expected + copies


def test_ends_have_embeddings_and_middle_stages_layers_only() -> None:
    first, *middle, last = parameters_by_stage(_split("gpt2-medium", 8))
    layers = 3 * layer_parameters(model("gpt2-medium").full)
    assert middle == [layers] * 6
    assert first - layers == (50304 + 1024) * 1024
    assert last - layers == 50304 * 1024 + 2 * 1024
    forward, backward = stage_passes_s(_split("gpt2-medium", 8), _A100, _KERNELS)
    for times in (forward, backward):
        assert np.ptp(times[1:-1]) == 0
        assert times[0] > times[1] and times[-1] > times[1]


def test_the_first_half_encodes_and_the_second_decodes() -> None:
    plain, crossing = stage_layers(_split("t5-large", 8))
    assert plain.tolist() == [6.0] * 4 + [0.0] * 4
    assert crossing.tolist() == [0.0] * 4 + [6.0] * 4
    assert embedding_stages(_split("t5-large", 8)) == [0, 4, 7]
    assert embedding_stages(_split("t5-large", 2)) == [0, 1]
    assert embedding_stages(_split("bert-large", 8)) == [0, 7]
    assert embedding_stages(_split("t5-large", 1)) == [0]


def test_messages_between_stages() -> None:
    # Half precision, 4 sequences of 1024 hidden units.
    token = 2 * 4 * 1024
    assert message_bytes(_split("gpt2-medium", 4)).tolist() == [1024 * token] * 3
    assert message_bytes(_split("t5-large", 8)).tolist() == [512 * token] * 4 + [640 * token] * 3
    assert message_bytes(_split("t5-large", 2)).tolist() == [512 * token]
    assert message_bytes(_split("gpt2-medium", 1)).size == 0


@_STAGES
@pytest.mark.parametrize("micro_batches", [1, 4, 16])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_first_stage_holds_what_the_closed_form_says(
    stages: int, micro_batches: int, recompute: str
) -> None:
    plan = Plan(
        global_batch_size=2 * micro_batches,
        micro_batch_size=2,
        pipeline_parallel=stages,
        recompute=recompute,
    )
    found = memory_by_stage_bytes(workload("gpt", GPT, plan))
    assert found[0] == pytest.approx(memory(rows(plan)).total[0], rel=1e-12)


@_MODELS
def test_one_stage_holds_all(name: str) -> None:
    plan = Plan(global_batch_size=4, micro_batch_size=4)
    entry = model(name)
    flat = workload(entry.family, entry.full, plan).flat()[0]
    # The closed form leaves the heads out: 18 bytes for each of at most three million parameters.
    found = memory_by_stage_bytes(_of(name, plan))
    assert found == pytest.approx(memory(flat).total, abs=18 * 3e6)


def test_later_stages_hold_fewer_micro_batches() -> None:
    w = _split("gpt2-medium", 8)
    held = memory_by_stage_bytes(w)
    of_three_layers = 3 * float(layer_activation_bytes(w)[0])
    assert -np.diff(held[1:-1]) == pytest.approx([of_three_layers] * 5, rel=1e-9)
    # With one micro batch there is one of it everywhere.
    assert np.ptp(memory_by_stage_bytes(_split("gpt2-medium", 8, 1))[1:-1]) == 0


def test_logits_of_large_micro_batches_make_the_last_stage_the_fullest() -> None:
    plan = Plan(global_batch_size=128, micro_batch_size=128, pipeline_parallel=8)
    held = memory_by_stage_bytes(_of("gpt2-medium", plan))
    assert held.argmax() == 7
    assert held[7] - held[6] > 4 * 128 * 1024 * 50304


def test_a_distributed_optimizer_shards_its_states() -> None:
    plan = Plan(global_batch_size=8, pipeline_parallel=2, data_parallel=4)
    plain = _of("gpt2-medium", plan)
    sharded = replace(plain, distributed_optimizer=np.array(1.0))
    saved = memory_by_stage_bytes(plain) - memory_by_stage_bytes(sharded)
    assert saved == pytest.approx(12 * 3 / 4 * parameters_by_stage(plain), rel=1e-12)


@pytest.mark.parametrize(
    ("family", "plan", "message"),
    [
        ("gpt", Plan(8, pipeline_parallel=5), "24 layers, not a multiple of 5 stages; fix: choose"),
        ("t5", Plan(8, pipeline_parallel=3), "t5 needs an even number of stages"),
        ("t5", Plan(8, pipeline_parallel=10), "24 layers per stack, not a multiple of 5 stages"),
        ("gpt", Plan(8, tensor_parallel=2), "tensor_parallel 2, virtual_stages 1"),
        ("gpt", Plan(8, pipeline_parallel=2, virtual_stages=2), "virtual_stages 2"),
    ],
)
def test_what_cannot_be_staged(family: Family, plan: Plan, message: str) -> None:
    shape = Shape(**{**GPT.model_dump(), "decoder_sequence_length": 128})
    with pytest.raises(ReproError, match=message):
        check_stages(workload(family, shape, plan))
