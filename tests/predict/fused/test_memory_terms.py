"""Terms of memory that no rank of a CPU holds, against their closed forms."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from repro.catalog.models.layers import layer_kinds
from repro.predict.fused.iteration import layer_parameters
from repro.predict.fused.memory import memory
from repro.predict.fused.run import Run
from repro.predict.memory import Memory
from repro.predict.tables.training import read_runs

_DENSE = {
    **{"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128},
    **{"gated_mlp": "yes", "seq": 8192, "vocab": 128256},
}
_EXPERTS = {**_DENSE, "ffn": 0, "experts": 64, "experts_per_token": 8, "expert_ffn": 2048}
_TABLES = 2 * 128256 * 4096
_ATTENTION = (32 + 2 * 8) * 128 * 4096 + 32 * 128 * 4096
_ROUTER, _EXPERT = 64 * 4096, 3 * 4096 * 2048


def _run(**changed: Any) -> Run:
    one = {"gpu": "h100_sxm", "gpus": 64, "global_batch": 512, "gradient_bytes": 4, **_DENSE}
    return read_runs(pd.DataFrame([{**one, **changed}]))


def _memory(stage: int = 0, **changed: Any) -> Memory:
    return memory(_run(**changed), stage)


def test_sharded_experts_are_whole_for_two_layers_on_their_own_ranks() -> None:
    """ZeRO-3 keeps 1/64 of all weights, experts' 1/8 of an eighth, and gathers what computes."""
    parts = _memory(**_EXPERTS, ep=8, fsdp="yes")
    common, experts = _ATTENTION + _ROUTER, 64 * _EXPERT
    own = (32 * (common + experts) + _TABLES) / 64
    whole = 2 * (common + experts / 8)
    assert parts.weights[0] == pytest.approx(2 * (own + whole))
    assert parts.gradients[0] == pytest.approx(4 * (own + whole))
    assert parts.optimizer_states[0] == pytest.approx(12 * own)


def test_tensor_parallel_ranks_all_have_the_router() -> None:
    common, experts = layer_parameters(_run(**_EXPERTS, tp=4, ep=8, etp=2))
    assert common[0] == pytest.approx(_ATTENTION / 4 + _ROUTER)
    assert experts[0] == pytest.approx(64 * _EXPERT / (8 * 2))


def test_zero_levels_divide_one_part_after_another() -> None:
    run = _run(fsdp="no")
    found = [memory(run, zero=level) for level in range(4)]
    all_parts = [[getattr(one, name)[0] for name in _STATES] for one in found]
    assert all_parts[0] == pytest.approx(np.array([2, 4, 12]) * all_parts[0][0] / 2)
    changed = [np.isclose(before, after) for before, after in pairwise(all_parts)]
    assert np.array(changed).tolist() == [
        [True, True, False],
        [True, False, True],
        [False, True, True],
    ]


_STATES = ("weights", "gradients", "optimizer_states")


def test_shards_of_fsdp_are_the_optimizers_own() -> None:
    """PyTorch's FSDP shards fp32 weights, gradients and two moments; half-precision copies of two
    layers come and go."""
    parts = _memory(fsdp="yes", stack="pytorch-fsdp")
    layer = _ATTENTION + 3 * 4096 * 14336
    own, whole = (32 * layer + _TABLES) / 64, 2 * layer
    assert parts.weights[0] == pytest.approx(4 * own + 2 * whole)
    assert parts.gradients[0] == pytest.approx(4 * own + 2 * whole)
    assert parts.optimizer_states[0] == pytest.approx(8 * own)


def test_gradients_are_as_wide_as_stated() -> None:
    wide, narrow = (_memory(gradient_bytes=width).gradients[0] for width in (4, 2))
    assert wide == pytest.approx(2 * narrow)
    # Megatron-Core's recipes have had them in half precision since 2023.
    assert _memory(gradient_bytes=None).gradients[0] == narrow


def test_the_busiest_experts_tokens_are_kept() -> None:
    """Per routed token its experts' inputs, both halves of the gate and their product."""
    even, uneven = (
        _memory(**_EXPERTS, ep=8, expert_imbalance=ratio).activations[0] for ratio in (1, 1.5)
    )
    assert uneven - even == pytest.approx(2 * 32 * 8192 * 0.5 * 8 * (4096 + 3 * 2048))


def test_frozen_weights_in_fp8_have_no_transposed_copy() -> None:
    run = _run(dtype="fp8")
    whole, adapters = (memory(_trained(run, share)) for share in (1.0, 0.01))
    assert adapters.weights[0] == pytest.approx(whole.weights[0] * (0.01 * 2 + 0.99) / 2)
    for name in ("gradients", "optimizer_states"):
        assert getattr(adapters, name)[0] == pytest.approx(0.01 * getattr(whole, name)[0])
    half = _run()
    assert memory(_trained(half, 0.01)).weights[0] == memory(half).weights[0]


def _trained(run: Run, share: float) -> Run:
    return Run(**{**vars(run), "trained": np.full(1, share)})


def test_maxtext_recomputes_all_but_projections() -> None:
    """Its selective policies keep the layer's input, queries, keys, values and both outputs."""
    options = {"recompute": "selective", "fsdp": "yes", "stack": "maxtext"}
    kept = _memory(**options).activations[0] - 2 * 8192 * 2 * 4096
    assert kept == pytest.approx(2 * 8192 * 32 * (3 * 4096 + (32 + 2 * 8) * 128))
    others = _memory(recompute="selective").activations[0]
    assert others == _memory().activations[0]


def test_further_tokens_have_a_table_and_logits_of_their_own() -> None:
    run = _run(pp=4, gpus=64)
    further = Run(**{**vars(run), "mtp_layers": np.ones(1)})
    (layer,) = (common for common, _ in [layer_parameters(run)])
    added = memory(further, 3).weights[0] - memory(run, 3).weights[0]
    # 33 layers and both ends on 4 stages are 9 on the largest.
    assert added == pytest.approx(2 * (layer[0] + 128256 * 4096))
    assert memory(further, 3).logits[0] == 2 * memory(run, 3).logits[0]


def test_latent_attention_keeps_its_compressed_vectors() -> None:
    run = _run(kv_heads=32)
    latent = {"kv_rank": 512, "query_rank": 1536, "rope_dim": 64}
    changed = Run(**{**vars(run), **{name: np.full(1, float(v)) for name, v in latent.items()}})
    added = memory(changed).activations[0] - memory(run).activations[0]
    assert added == pytest.approx(2 * 8192 * 32 * 2 * (512 + 1536))
    assert len(layer_kinds(changed)) == 1
