"""Memory of today's decoders is what Megatron-Core's ranks hold, part by part."""

from collections.abc import Iterator

import pytest
from megatron_tensors import Sizes, Tensors, count, gradient_bytes
from rank_pool import RankPool

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.systems.gpus import gpu
from repro.predict.fused.memory import memory
from repro.predict.fused.run import decoder_runs
from repro.predict.memory import WIDTHS, Memory
from repro.predict.workload import RECOMPUTE

pytestmark = pytest.mark.slow

# Wide enough that statistics of norms and probabilities of routers are small beside activations.
_SIZE = {"layers": 2, "hidden": 256, "heads": 8, "gated_mlp": True, "seq": 96, "vocab": 512}
_DENSE = DecoderShape(**_SIZE, ffn=640, kv_heads=4, head_dim=32)
_EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 192}
_MIXTURE = DecoderShape(**_SIZE, **_EXPERTS, kv_heads=4, head_dim=32)
_LATENT = DecoderShape(
    **(_SIZE | {"layers": 3}),
    **_EXPERTS,
    kv_heads=8,
    head_dim=48,
    value_dim=32,
    kv_rank=64,
    query_rank=80,
    rope_dim=16,
    shared_expert_ffn=128,
    dense_layers=1,
    dense_ffn=640,
)
_TIED = _DENSE.model_copy(update={"tied": True})
_CASES = [
    (_DENSE, Sizes()),
    (_TIED, Sizes(zero=0, dp=2)),
    (_DENSE, Sizes(dp=2)),
    (_DENSE, Sizes(tp=2)),
    (_DENSE, Sizes(recompute="selective")),
    (_DENSE, Sizes(tp=2, recompute="full")),
    (_MIXTURE, Sizes()),
    (_MIXTURE, Sizes(ep=2, dp=2)),
    (_MIXTURE, Sizes(ep=2, dp=4)),
    (_MIXTURE, Sizes(tp=2, etp=2)),
    (_MIXTURE, Sizes(tp=2, ep=2, etp=1)),
    (_MIXTURE, Sizes(tp=2, ep=2, etp=2, dp=2)),
    (_MIXTURE, Sizes(ep=2, dp=2, recompute="selective")),
    (_MIXTURE, Sizes(ep=2, dp=2, recompute="full")),
    (_LATENT, Sizes(ep=2, dp=2)),
    (_LATENT, Sizes(tp=2, ep=2)),
    (_LATENT, Sizes(recompute="full")),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Rank processes whose groups these tests make themselves."""
    ranks = RankPool()
    yield ranks
    ranks.close()


def _counted(pool: RankPool, shape: DecoderShape, sizes: Sizes) -> list[Tensors]:
    return pool.run(count, shape, sizes, ranks=sizes.tp * sizes.dp)


def _predicted(shape: DecoderShape, sizes: Sizes) -> Memory:
    plan = {name: [getattr(sizes, name)] for name in ("tp", "ep", "etp", "dp", "micro_batch")}
    run = decoder_runs(
        shape,
        gpu("h100-sxm-80gb"),
        "megatron-core",
        **plan,
        **dict.fromkeys(("pp", "cp", "vpp", "imbalance", "micro_batches"), 1),
        zero_bubble=0,
        sharded=0,
        precision=0,
        recompute=RECOMPUTE.index(sizes.recompute),
    )
    return memory(run, 0, zero=sizes.zero, widths=WIDTHS["fp32"])


def _unfused(shape: DecoderShape, sizes: Sizes, layers: int) -> float:
    """Bytes that only Megatron-Core's own layers keep, those of Transformer Engine do not."""
    tokens = sizes.micro_batch * shape.seq
    # Cosines and sines of rotary embeddings, for queries and for keys.
    elements = 4 * shape.seq * (shape.rope_dim or shape.head_dim)
    # Compressed queries of which a rank keeps its sequences, as a view of all.
    elements += tokens * (1 - 1 / sizes.tp) * shape.query_rank
    if sizes.recompute == "selective":
        # Values beside which a view keeps queries and keys.
        elements += tokens * (shape.heads + shape.kv_heads) * shape.head_dim
    return 4 * layers * elements


def _divided_compressions(shape: DecoderShape, sizes: Sizes) -> float:
    """Weights that Megatron-Core's own layers divide, Transformer Engine's have on each rank."""
    width = shape.query_rank + shape.kv_rank + shape.rope_dim
    return shape.layers * shape.hidden * width * (1 - 1 / sizes.tp) * bool(shape.kv_rank)


def _name(value: DecoderShape | Sizes) -> str:
    if isinstance(value, Sizes):
        return str(value).removeprefix("Sizes")
    names = {_DENSE: "dense", _TIED: "tied", _MIXTURE: "mixture", _LATENT: "latent"}
    return names[value]


@pytest.mark.parametrize(("shape", "sizes"), _CASES, ids=_name)
def test_a_rank_holds_what_is_predicted(pool: RankPool, shape: DecoderShape, sizes: Sizes) -> None:
    parts = _predicted(shape, sizes)
    divided = _divided_compressions(shape, sizes)
    entered = 4 * shape.layers * sizes.micro_batch * shape.seq * shape.hidden / sizes.tp
    head = 2 * entered / shape.layers
    for found in _counted(pool, shape, sizes):
        assert parts.weights[0] - 4 * divided == pytest.approx(found.weights, rel=0.01)
        assert parts.gradients[0] - 4 * divided == pytest.approx(found.gradients, rel=0.01)
        own = parts.optimizer_states[0] - 8 * divided / (sizes.dp if sizes.zero else 1)
        assert own == pytest.approx(found.optimizer_states, rel=0.015)
        if sizes.recompute != "full":
            kept = float((parts.activations + parts.logits)[0]) + _unfused(
                shape, sizes, shape.layers
            )
            assert kept == pytest.approx(found.kept, rel=0.015)
            continue
        # Layers' inputs wait; at the peak one layer is whole, and the head's inputs are freed.
        waiting = entered + head + float(parts.logits[0])
        assert waiting == pytest.approx(found.kept, rel=0.02)
        peak = float(parts.activations[0]) - head + _unfused(shape, sizes, 1)
        assert peak == pytest.approx(found.peak, rel=0.02)


def test_experts_optimizer_is_shared_by_the_ranks_that_have_them(pool: RankPool) -> None:
    """Of four replicas two have the same experts: 8 bytes of moments over 2, the others' over 4."""
    one, *_ = _counted(pool, _MIXTURE, Sizes(ep=2, dp=4))
    experts = 2 * 8 * 3 * 256 * 192
    assert one.weights == pytest.approx(one.gradients, rel=0.01)
    common = one.weights / 4 - experts / 2
    assert one.optimizer_states == pytest.approx(8 * (common / 4 + experts / 2 / 2), rel=0.01)


@pytest.mark.parametrize(("in_fp32", "width"), [(True, 4), (False, 2)])
def test_gradients_are_as_wide_in_memory_as_they_are_sent(
    pool: RankPool, in_fp32: bool, width: int
) -> None:
    """The field `gradient_bytes` is Megatron's buffer, 2 with --grad-reduce-in-bf16."""
    (found,) = pool.run(gradient_bytes, _DENSE, in_fp32, ranks=1)
    assert found == pytest.approx(width, rel=0.01)
