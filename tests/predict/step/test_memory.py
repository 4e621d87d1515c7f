"""Memory against what Korthikanti et al. (MLSys 2023) print."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from examples import GPT, rows, workloads
from hypothesis import given

from repro.catalog.models import Shape
from repro.catalog.volumes import embedding_parameters, layer_parameters
from repro.paths import PUBLISHED
from repro.predict.step.memory import activation_bytes_per_layer, memory
from repro.predict.workload import Array, Plan, Workload, check

# Table 3: layers, hidden size, heads, pipeline stages, chunks, micro batch; all 8-way tensor
# parallel.
_MODELS = {
    "22B": (48, 6144, 64, 1, 1, 4),
    "175B": (96, 12288, 96, 8, 3, 1),
    "530B": (105, 20480, 128, 35, 3, 1),
    "1T": (128, 25600, 160, 64, 1, 1),
}
# Recomputation, and whether with sequence parallelism.
_MODES = {
    "none": ("none", False),
    "seq": ("none", True),
    "sel": ("selective", False),
    "seqsel": ("selective", True),
    "full": ("full", False),
}
_GIB = 2**30


def _published(model: str, mode: str) -> Workload:
    layers, hidden, heads, p, v, b = _MODELS[model]
    recompute, sequence_parallel = _MODES[mode]
    shape = Shape(
        layers=layers,
        hidden_size=hidden,
        attention_heads=heads,
        sequence_length=2048,
        vocabulary_size=51200,
    )
    plan = Plan(
        # Enough micro batches to fill the pipeline.
        global_batch_size=2 * p * b,
        micro_batch_size=b,
        tensor_parallel=8,
        pipeline_parallel=p,
        virtual_stages=v,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
    )
    w = rows(plan, shape)
    check(w)
    return w


_FIGURE_1 = pd.read_csv(PUBLISHED / "korthikanti_fig1_memory.csv")
_FIGURE_7 = pd.read_csv(PUBLISHED / "korthikanti_fig7_actmem_pct.csv")


@pytest.mark.parametrize(
    ("model", "mode", "states", "activations"),
    _FIGURE_1[["model", "mode", "params_opt_GiB", "activations_GiB"]].itertuples(index=False),
)
def test_the_published_memory(model: str, mode: str, states: float, activations: float) -> None:
    w = _published(model, mode)
    found = memory(w)
    held = found.total - found.activations
    # 18 B a parameter; the figure leaves out the embeddings.
    without_embeddings = held - 18 * embedding_parameters(w) / 8
    assert without_embeddings / _GIB == pytest.approx(states, rel=0.03)
    assert found.activations / _GIB == pytest.approx(activations, rel=0.03)


@pytest.mark.parametrize(
    ("model", "mode", "percent"),
    _FIGURE_7[["model", "mode", "pct_of_baseline"]].itertuples(index=False),
)
def test_the_published_savings(model: str, mode: str, percent: float) -> None:
    saved = activation_bytes_per_layer(_published(model, mode))
    baseline = activation_bytes_per_layer(_published(model, "none"))
    assert 100 * saved / baseline == pytest.approx(percent, rel=0.03, abs=0.5)


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
    assert activation_bytes_per_layer(rows(plan)) == pytest.approx(expected, rel=1e-12)


def test_a_distributed_optimizer_shards_twelve_bytes() -> None:
    plan = Plan(global_batch_size=16, data_parallel=16)
    plain, sharded = memory(rows(plan)), memory(rows(replace(plan, distributed_optimizer=True)))
    parameters = plain.weights / 2
    assert plain.total - plain.activations == pytest.approx(18 * parameters)
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
    # and fp32 logits, beside the embeddings' dropout mask.
    t = np.array([1.0, 2.0, 8.0])
    w = rows(Plan(global_batch_size=8, tensor_parallel=t, sequence_parallel=True))
    head = 4 * 1024 * 1024 / t * (1 + 51200 / 1024)
    expected = 24 * activation_bytes_per_layer(w) + 1024 * 1024 / t + head
    assert memory(w).activations == pytest.approx(expected, rel=1e-12)


def test_interleaving_holds_more_micro_batches() -> None:
    plan = Plan(global_batch_size=8, pipeline_parallel=4, virtual_stages=[1, 2, 3])
    held = memory(rows(plan)).activations - 4 * 1024 * 1024
    assert held / held[0] == pytest.approx([1, 1 + 3 / 8, 1 + 3 / 12])


def test_a_recomputed_layer_is_in_memory_while_its_backward_pass_runs() -> None:
    shape = GPT.model_copy(update={"layers": 1})
    plan = Plan(global_batch_size=1)
    kept = memory(rows(plan, shape)).activations
    recomputed = memory(rows(replace(plan, recompute="full"), shape)).activations
    # One layer only: recomputation saves nothing, and its input is kept beside.
    assert recomputed - kept == pytest.approx(2 * 1024 * 1024)


@given(workloads(most=3))
def test_recomputation_saves_memory_in_its_order(w: Workload) -> None:
    none, selective, full = (
        activation_bytes_per_layer(replace(w, recompute=np.full_like(w.layers, code)))
        for code in (0, 1, 2)
    )
    assert (none > selective).all() and (selective > full).all()


@given(workloads(most=3))
def test_parts_of_memory_add_up(w: Workload) -> None:
    found = memory(w)
    parts = np.array([getattr(found, field.name) for field in fields(found)])
    assert (parts > 0).all()
    assert found.total == pytest.approx(parts.sum(axis=0))
