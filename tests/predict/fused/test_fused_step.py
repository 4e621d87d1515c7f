"""A step is its work at the rates it is given: closed forms, part by part."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from repro.catalog.models.layers import decoder_layer
from repro.predict.fused.iteration import (
    FusedPhases,
    in_blocks_s,
    iteration_times_s,
    layer_parameters,
    predict_phases,
)
from repro.predict.fused.layer import FusedPasses, layer_passes
from repro.predict.fused.memory import (
    FRAGMENTATION,
    FRAMEWORK_BYTES,
    fullest_bytes,
    memory,
)
from repro.predict.fused.parameters import FusedParameters, read_fused
from repro.predict.fused.run import Run
from repro.predict.tables.training import read_runs

_MODEL = {
    "layers": 32,
    "hidden": 4096,
    "ffn": 14336,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "gated_mlp": "yes",
    "seq": 8192,
    "vocab": 128256,
}
_EXPERTS = {**_MODEL, "ffn": 0, "experts": 64, "experts_per_token": 8, "expert_ffn": 2048}


def _run(**changed: Any) -> Run:
    one = {**_MODEL, "gpu": "h100_sxm", "gpus": 8, "global_batch": 128, **changed}
    return read_runs(pd.DataFrame([one]))


def _parameters(**changed: float) -> FusedParameters:
    return read_fused().parameters.model_copy(update=changed)


def _phases(run: Run, **changed: float) -> dict[str, float]:
    found = predict_phases(run, _parameters(**changed))
    return {one.name: float(getattr(found, one.name)[0]) for one in fields(FusedPhases)}


def _passes(run: Run, **changed: float) -> FusedPasses:
    return layer_passes(run, decoder_layer(run), _parameters(**changed))


def test_phases_add_up_in_blocks_too() -> None:
    run = _run(tp=2, pp=2, dtype="fp8", recompute="full")
    many = run.rows(np.zeros(20_000, dtype=int))
    times = in_blocks_s(many, _parameters())
    assert times == pytest.approx(sum(_phases(run).values()))


def test_computing_is_near_what_the_peak_allows() -> None:
    """Six operations for each parameter and token cannot be done faster than the peak."""
    run = _run()
    passes = _passes(run)
    common, _ = layer_parameters(run)
    ideal = 6 * common[0] * run.tokens[0] / run.peak_flops[0]
    assert 1 < passes.products.sum() / ideal < 2
    causal = (2 + 5) * run.seq[0] ** 2 * run.heads[0] * run.head_dim[0] / run.half_flops[0]
    assert 1 < passes.attention.sum() / causal < 3


def test_fp8_halves_what_large_products_take_at_most() -> None:
    half, eighth = (_passes(_run(dtype=name)) for name in ("bf16", "fp8"))
    assert 1.3 < half.products.sum() / eighth.products.sum() < 2.2
    # Attention stays in half precision, and casts are traffic.
    assert half.attention.sum() == pytest.approx(eighth.attention.sum())
    assert eighth.traffic.sum() > half.traffic.sum()


def test_tensor_parallelism_sends_ten_collectives_a_layer() -> None:
    run = _run(tp=4, overlap="none")
    exposed = _passes(run, link_efficiency=0.5).tensor[:, 0]
    one = 3 / 4 * 2 * 8192 * 4096 / (0.5 * 450e9) + 8e-6
    assert exposed == pytest.approx([4 * one, 6 * one])
    assert _passes(_run(tp=1)).tensor.sum() == 0


def test_what_overlaps_is_hidden_but_for_a_piece_and_multiprocessors() -> None:
    bare, hidden = (
        _passes(_run(tp=4, overlap=name), reserved=0.1).tensor for name in ("none", "tp")
    )
    assert hidden == pytest.approx(bare * (1 / 4 + 0.1))


@pytest.mark.parametrize(("gradients", "sent"), [({}, 4), ({"gradient_bytes": 4}, 6)])
def test_replicas_exchange_gradients_and_parameters(gradients: dict[str, int], sent: int) -> None:
    """Two bytes of each, but for gradients that are stated to be wider."""
    run = _run(gpus=8, tp=1, overlap="none", **gradients)
    phases = _phases(run, link_efficiency=0.5)
    common, _ = layer_parameters(run)
    count = 32 * common[0] + 128256 * 4096
    assert phases["replicas"] == pytest.approx(sent * count * 7 / 8 / (0.5 * 450e9))
    assert _phases(_run(gpus=1, global_batch=16))["replicas"] == 0


def test_replicas_on_nodes_share_their_nics_with_the_groups_beside_them() -> None:
    """One ring has all eight NICs of a node; of four tensor-parallel ranks' rings each has two."""
    runs = [_run(gpus=64, tp=tp, global_batch=256, overlap="none") for tp in (1, 4)]
    one, split = (_phases(run, link_efficiency=1.0, ring_step_s=1e-12) for run in runs)
    nic = 50e9 * _parameters().fabric_efficiency
    common, _ = layer_parameters(_run())
    count = 32 * common[0] + 128256 * 4096
    assert one["replicas"] == pytest.approx(4 * count * 63 / 64 / (8 * nic))
    assert split["replicas"] == pytest.approx(4 * count / 4 * 15 / 16 / (2 * nic))
    # Rings of 64 pass 63 times in both directions, for each bucket of 64 million parameters.
    slow = _phases(runs[0], link_efficiency=1.0, ring_step_s=1e-5)
    assert slow["replicas"] - one["replicas"] == pytest.approx(2 * 63 * 1e-5 * count / 64e6)


def test_the_optimizer_moves_its_part_once() -> None:
    """A shared Adam reads and writes 40 bytes of each of its parameters; a norm and a clearing of
    all gradients 6."""
    run = _run(gpus=8)
    common, _ = layer_parameters(run)
    count = 32 * common[0] + 128256 * 4096
    moved = 40 * count / 8 + 6 * count
    assert _phases(run, memory_efficiency=0.5)["optimizer"] == pytest.approx(moved / (0.5 * 3352e9))
    sharded = _phases(_run(gpus=8, fsdp="yes"), memory_efficiency=0.5)
    assert sharded["optimizer"] == pytest.approx(40 * count / 8 / (0.5 * 3352e9))


def test_a_bubble_is_the_other_stages_over_the_chunks() -> None:
    plain, chunked = (_phases(_run(gpus=4, pp=4, vpp=v, global_batch=64)) for v in (1, 4))
    busy = {name: plain[name] for name in ("products", "attention", "elements", "messages")}
    busy = {**busy, "host": plain["host"]}
    assert plain["bubble"] == pytest.approx(3 / 64 * sum(busy.values()), rel=1e-6)
    assert chunked["bubble"] == pytest.approx(plain["bubble"] / 4, rel=0.05)


def test_zero_bubble_leaves_a_forward_pass() -> None:
    """F + B - W of F + B + W, where W is half of the backward pass's products (Qi et al., 2024)."""
    plain, zero = (
        _run(gpus=64, tp=8, pp=8, overlap="pp", zero_bubble=said) for said in ("no", "yes")
    )
    _, products = _passes(plain).products
    saved = _phases(plain)["bubble"] - _phases(zero)["bubble"]
    assert saved == pytest.approx(7 * 4 * float(products[0]))
    assert _phases(zero)["products"] == _phases(plain)["products"]


def test_the_busiest_experts_are_waited_for() -> None:
    even, uneven = (
        _run(**{**_EXPERTS, "gpus": 64, "ep": 8, "expert_imbalance": ratio, "overlap": "none"})
        for ratio in (1.0, 2.0)
    )
    wires = [float(_passes(run).experts.sum()) - 4 * _exchange_s() for run in (even, uneven)]
    assert wires[1] == pytest.approx(2 * wires[0])
    assert _phases(uneven)["products"] > 1.3 * _phases(even)["products"]
    assert _phases(uneven)["attention"] == _phases(even)["attention"]


def _exchange_s() -> float:
    return read_fused().parameters.exchange["megatron-core"]


def test_sharded_parameters_come_while_layers_compute() -> None:
    hidden = _phases(_run(gpus=8, fsdp="yes"), reserved=0.0)
    assert hidden["replicas"] == pytest.approx(0, abs=1e-9)
    # With a thousandth of the links they are what a layer waits for.
    slow = _run(gpus=8, fsdp="yes")
    slow = replace(slow, link_bytes_per_s=slow.link_bytes_per_s / 1000)
    common, _ = layer_parameters(slow)
    wire = 2 * common[0] * 7 / 8 / (450e6 * _parameters().link_efficiency)
    passes = _passes(slow).time_s.sum()
    # Two gathers, and a reduction once in 16 micro batches.
    wanted = 16 * 32 * (wire * (2 + 1 / 16) - passes)
    assert _phases(slow, reserved=0.0)["replicas"] == pytest.approx(wanted)


def test_tokens_go_to_their_experts_and_back() -> None:
    run = read_runs(
        pd.DataFrame([{**_EXPERTS, "gpu": "h100_sxm", "gpus": 8, "global_batch": 128, "ep": 8}])
    )
    parameters = _parameters(link_efficiency=0.5, exchange_efficiency=0.8)
    started = parameters.exchange["megatron-core"]
    found = layer_passes(run, decoder_layer(run), parameters).experts[:, 0]
    one = 8 * 7 / 8 * 2 * 8192 * 4096 / (0.8 * 0.5 * 450e9) + started
    assert found == pytest.approx([2 * one, 2 * one])
    alone = replace(run, ep=np.ones(1))
    assert _passes(alone).experts.sum() == 0
    # However many hold the experts, as much is computed but for the tiles.
    both = [_passes(one).products.sum() for one in (run, alone)]
    assert both[0] == pytest.approx(both[1], rel=0.1)


def test_memory_is_eighteen_bytes_a_parameter_and_what_is_kept() -> None:
    """Weights 2, gradients 4, optimizer 12 (Korthikanti et al., 2023), the last of them shared."""
    run = _run(gpus=8, recompute="full", gradient_bytes=4)
    parts = memory(run)
    common, _ = layer_parameters(run)
    count = 32 * common[0] + 2 * 128256 * 4096
    assert parts.weights[0] == pytest.approx(2 * count)
    assert parts.gradients[0] == pytest.approx(4 * count)
    assert parts.optimizer_states[0] == pytest.approx(12 * count / 8)
    # Inputs of all layers, the rest of one layer that is computed again, and the final norm's and
    # the logits' input.
    whole = 3 * 4096 + 2 * (32 + 8) * 128 + 3 * 14336
    assert parts.activations[0] == pytest.approx(2 * 8192 * (32 * 4096 + whole + 2 * 4096))
    assert parts.logits[0] == pytest.approx(4 * 8192 * 128256)


def test_the_fullest_gpu_is_one_of_the_ends() -> None:
    first, last = (_run(gpus=8, pp=8, global_batch=batch) for batch in (64, 1))
    margin = 1 + FRAGMENTATION / 2
    ends = [[memory(run, stage).total[0] for stage in (0, 7)] for run in (first, last)]
    assert ends[0][0] > ends[0][1] and ends[1][0] < ends[1][1]
    for run, of in zip((first, last), ends, strict=True):
        assert fullest_bytes(run)[0] == pytest.approx(margin * (max(of) + FRAMEWORK_BYTES))


def test_low_precision_keeps_operands_as_it_computed_with_them() -> None:
    """Both norms' outputs and the MLP's inner operand are bytes, and there is one more of what
    attention returned, whose backward pass takes it in half precision."""
    half, eighth = (memory(_run(dtype=name)).activations[0] for name in ("bf16", "fp8"))
    saved = 2 * 4096 + 14336 - 32 * 128
    assert half - eighth == pytest.approx(32 * 8192 * saved)


def test_context_parallel_ranks_split_what_is_kept() -> None:
    whole, split = memory(_run()), memory(_run(cp=4, gpus=8))
    assert whole.activations[0] == pytest.approx(4 * split.activations[0])
    assert whole.logits[0] == pytest.approx(4 * split.logits[0])


def test_a_slow_host_is_waited_for() -> None:
    slow = _phases(_run(), launch_s=1e-2)
    assert slow["host"] > slow["products"]
    assert iteration_times_s(_run(), _parameters(launch_s=1e-2)) == pytest.approx(
        sum(slow.values())
    )


def test_a_window_leaves_out_what_is_further_back() -> None:
    """Every second layer has 128 of up to 8192 scores in a row: s w instead of s^2 / 2."""
    whole, windowed = (_passes(_run(window=w)).attention for w in (0, 128))
    assert windowed == pytest.approx(whole * (1 + 2 * 128 / 8192) / 2)
    # A model that is known needs no column, and this one's heads have sinks.
    named = _passes(_run(model="gpt-oss-20b")).attention
    assert named == pytest.approx(windowed * read_fused().parameters.sinks)
