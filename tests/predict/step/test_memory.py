"""Memory against what Korthikanti et al. (MLSys 2023) print."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from examples import GPT, rows, workloads
from hypothesis import given

from repro.catalog.models.volumes import embedding_parameters, layer_parameters
from repro.predict.memory import WIDTHS, in_flight
from repro.predict.step.memory import layer_activation_bytes, memory, stage_parameters
from repro.predict.workload import Array, Plan, Workload
from repro.studies.memory.predicted import published_memory, published_savings


def test_the_published_memory() -> None:
    found = published_memory()
    assert len(found) == 2 * 8
    assert (found.error_pct.abs() < 3).all()


def test_the_published_savings() -> None:
    found = published_savings()
    assert len(found) == 4 * 5
    # The figure was read to half a percent.
    assert (
        (found.predicted - found.published).abs() < np.maximum(0.03 * found.published, 0.5)
    ).all()


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "per_sbh"),
    [
        # Table 2, with 5 a s / h = 80 in this shape.
        ("none", False, lambda t: 10 + 24 / t + 80 / t),
        ("none", True, lambda t: (34 + 80) / t),
        ("selective", False, lambda t: 10 + 24 / t),
        ("selective", True, lambda t: 34 / t),
        ("full", False, lambda t: 2 + 0 * t),
    ],
)
def test_activations_of_a_layer(
    recompute: str, sequence_parallel: bool, per_sbh: Callable[[Array], Array]
) -> None:
    t = np.array([1.0, 2.0, 8.0])
    plan = Plan(
        global_batch_size=3,
        micro_batch_size=3,
        tensor_parallel=t,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
    )
    expected = per_sbh(t) * 1024 * 3 * 1024
    assert layer_activation_bytes(rows(plan))[0] == pytest.approx(expected, rel=1e-12)


def test_a_distributed_optimizer_shards_twelve_bytes() -> None:
    plan = Plan(global_batch_size=16, data_parallel=16)
    plain, sharded = memory(rows(plan)), memory(rows(replace(plan, distributed_optimizer=True)))
    parameters = plain.weights / 2
    kept = plain.activations + plain.logits
    assert plain.total - kept == pytest.approx(18 * parameters)
    assert plain.total - sharded.total == pytest.approx(12 * parameters * 15 / 16)
    assert sharded.weights == plain.weights and sharded.gradients == plain.gradients


def test_stages_hold_a_share_of_the_layers_each() -> None:
    plan = Plan(global_batch_size=8, tensor_parallel=2, pipeline_parallel=[1, 2, 4, 8])
    w = rows(plan)
    layers = 24 * layer_parameters(GPT) / np.array([1, 2, 4, 8])
    expected = 2 * (layers + embedding_parameters(GPT)) / 2
    assert memory(w).weights == pytest.approx(expected, rel=1e-12)


def test_a_full_pipeline_holds_as_much_as_one_stage_with_all_layers() -> None:
    # p micro batches of L/p layers, if there are as many; what differs is the head's own.
    whole = memory(rows(Plan(global_batch_size=8, pipeline_parallel=[2, 4, 8]))).activations
    assert whole - whole[0] == pytest.approx(
        # The embeddings' dropout masks, one byte per element of p micro batches.
        1024 * 1024 * (np.array([2, 4, 8]) - 2)
    )
    half = memory(rows(Plan(global_batch_size=4, pipeline_parallel=8))).activations
    assert half == pytest.approx(whole[2] / 2)


def test_one_stage_holds_the_head_too() -> None:
    # Korthikanti et al., section 4.3: 4 s b h / t (1 + v/h) for the final norm, the logits' input
    # and fp32 logits, beside the embeddings' dropout mask; and the logits in half precision that
    # those are made of.
    t = np.array([1.0, 2.0, 8.0])
    w = rows(Plan(global_batch_size=8, tensor_parallel=t, sequence_parallel=True))
    found = memory(w)
    ends = 1024 * 1024 / t + 4 * 1024 * 1024 / t
    expected = 24 * layer_activation_bytes(w)[0] + ends
    assert found.activations == pytest.approx(expected, rel=1e-12)
    assert found.logits == pytest.approx((4 + 2) * 1024 * 51200 / t, rel=1e-12)
    # Those in fp32 are used as they are.
    assert memory(w, widths=WIDTHS["fp32"]).logits == pytest.approx(4 * 1024 * 51200 / t)


def test_interleaving_holds_more_micro_batches() -> None:
    plan = Plan(global_batch_size=8, pipeline_parallel=4, virtual_stages=[1, 2, 3])
    held = memory(rows(plan)).activations - 4 * 1024 * 1024
    assert held / held[0] == pytest.approx([1, 1 + 3 / 8, 1 + 3 / 12])


def test_a_recomputed_layer_is_in_memory_while_its_backward_pass_runs() -> None:
    shape = GPT.model_copy(update={"layers": 1})
    plan = Plan(global_batch_size=1)
    kept = memory(rows(plan, shape)).activations
    recomputed = memory(rows(replace(plan, recompute="full"), shape)).activations
    # One layer only, which is whole in its backward pass: recomputation saves nothing.
    assert recomputed == pytest.approx(kept)


@given(workloads(most=3))
def test_recomputation_saves_memory_in_its_order(w: Workload) -> None:
    none, selective, full = (
        layer_activation_bytes(replace(w, recompute=np.full_like(w.layers, code)))[0]
        for code in (0, 1, 2)
    )
    assert (none > selective).all() and (selective > full).all()


@given(workloads(most=3))
def test_parts_of_memory_add_up(w: Workload) -> None:
    found = memory(w)
    parts = np.array(np.broadcast_arrays(*vars(found).values()))
    assert (parts >= 0).all()
    assert found.total == pytest.approx(parts.sum(axis=0))


def test_every_level_of_zero_shares_one_thing_more() -> None:
    """Table 1 of Rajbhandari et al., SC 2020: of 16 B a parameter ZeRO-1 shares 12, ZeRO-2 14,
    ZeRO-3 all of them, but for the layer that computes."""
    w = rows(Plan(global_batch_size=64, data_parallel=64))
    found = [memory(w, zero=level, widths=WIDTHS["half gradients"]) for level in range(4)]
    states = [one.total - one.activations - one.logits for one in found]
    count = stage_parameters(w)
    layer = layer_parameters(GPT)
    own = count / 64
    assert states[0] == pytest.approx(16 * count)
    assert states[1] == pytest.approx(4 * count + 12 * own)
    assert states[2] == pytest.approx(2 * count + 14 * own + 2 * layer)
    assert states[3] == pytest.approx(16 * own + 4 * layer)


def test_only_the_ends_have_embeddings_and_the_last_stage_logits() -> None:
    w = rows(Plan(global_batch_size=8, pipeline_parallel=4))
    stages = [memory(w, stage) for stage in range(4)]
    layers = 2 * 6 * layer_parameters(GPT)
    words = 2 * 51200 * 1024
    held = np.array([float(one.weights[0]) for one in stages]) - layers
    assert held == pytest.approx([words + 2 * 1024 * 1024, 0, 0, words])
    assert [float(one.logits[0]) for one in stages] == [0, 0, 0, 6 * 1024 * 51200]
    per_layer = float(layer_activation_bytes(w)[0][0])
    middle = [float(one.activations[0]) for one in stages[1:3]]
    assert middle == pytest.approx([3 * 6 * per_layer, 2 * 6 * per_layer])


def test_in_flight_is_korthikantis_on_the_first_stage() -> None:
    p, v = np.array([2.0, 4.0, 8.0]), np.array([2.0, 3.0, 5.0])
    assert in_flight(0, p, v, 4 * p) == pytest.approx(p * (1 + (p - 1) / (p * v)))
    assert in_flight(p - 1, p, np.ones(3), 4 * p) == pytest.approx(1)
    # There are no more than all of them.
    assert in_flight(0, p, v, p) == pytest.approx(p)


def test_fp32_doubles_what_is_kept_and_no_dropout_leaves_its_masks() -> None:
    w = rows(Plan(global_batch_size=1))
    half, whole = (
        layer_activation_bytes(w, element=element, dropout=False)[0] for element in (2, 4)
    )
    assert whole == pytest.approx(2 * half)
    masks = layer_activation_bytes(w)[0] - half
    # Behind two blocks one byte an element; of scores one more, and they twice.
    assert masks == pytest.approx(2 * 1024 * 1024 + 3 * 16 * 1024 * 1024)


def test_torchs_softmax_keeps_its_result_in_fp32() -> None:
    w = rows(Plan(global_batch_size=1))
    fused = layer_activation_bytes(w, dropout=False)[0]
    more = layer_activation_bytes(w, dropout=False, torch_softmax=True)[0] - fused
    assert more == pytest.approx(4 * 16 * 1024 * 1024)
