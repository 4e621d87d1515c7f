"""Weights and caches against their closed forms, and what does not fit."""

import pytest
from serving_examples import LATENT, on, rows_of

from repro.catalog.models.open_models import open_model
from repro.errors import ReproError
from repro.predict.serving.memory import cache_bytes, check_fits, largest_batch, weight_bytes
from repro.predict.serving.served import served


@pytest.mark.parametrize("model", ["llama3.1-8b", "llama2-7b", "gpt-j-6b"])
def test_weights_are_the_models_parameters(model: str) -> None:
    entry = open_model(model)
    assert weight_bytes(rows_of(model), on()) == pytest.approx(2 * entry.parameters, rel=0.005)


def test_lower_precision_halves_layers_and_not_tables() -> None:
    half, eighth = (weight_bytes(rows_of(), on(weights=name)) for name in ("bf16", "fp8"))
    tables = 2 * 2 * 128256 * 4096
    assert eighth - tables == pytest.approx((half - tables) / 2)


def test_groups_split_weights_and_share_heads() -> None:
    alone, eight = rows_of("llama3.1-70b"), rows_of("llama3.1-70b", tp=8)
    assert weight_bytes(eight, on()) == pytest.approx(weight_bytes(alone, on()) / 8, rel=0.001)
    assert cache_bytes(eight, on(), 1024) == cache_bytes(alone, on(), 1024) / 8
    # Sixteen GPUs hold eight heads twice.
    assert cache_bytes(rows_of("llama3.1-70b", tp=16), on(), 1024) == cache_bytes(eight, on(), 1024)


def test_a_cache_of_grouped_queries_is_in_whole_pages() -> None:
    # 2 x 2 bytes x 32 layers x 8 heads x 128, for 512 tokens.
    assert cache_bytes(rows_of(), on(), 512) == 2 * 2 * 32 * 8 * 128 * 512
    assert cache_bytes(rows_of(), on(), 513) == 2 * 2 * 32 * 8 * 128 * 528
    # Every query has its own keys and values.
    assert cache_bytes(rows_of("llama2-7b"), on(), 512) == 2 * 2 * 32 * 32 * 128 * 512
    assert cache_bytes(rows_of(), on(weights="fp8"), 512) == 2 * 32 * 8 * 128 * 512


def test_a_windows_layers_keep_its_tokens_only() -> None:
    whole = 2 * 2 * 24 * 8 * 64
    assert cache_bytes(rows_of("gpt-oss-20b"), on(), 4224) == whole * (4224 + 128) / 2


def test_the_largest_batch_fills_what_weights_leave() -> None:
    held, whole = 3e9 + 2 * 8.03e9, 0.99 * 80 * 2**30
    # Prompts of 512 tokens and answers of 64, reserved, or half written on average.
    for stack, left, tokens in (
        ("tensorrt-llm", 0.9 * (whole - held), 576),
        ("vllm", 0.9 * whole - held, 544),
    ):
        found = largest_batch(rows_of(), on(stack=stack))
        assert found == pytest.approx(left / (2 * 2 * 32 * 8 * 128 * tokens), abs=2)
    assert largest_batch(rows_of(input_tokens=16, output_tokens=16), on()) == 1024


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"model": "llama3.1-70b"}, "141 GB of weights on each H100-SXM-80GB of 85 GB"),
        ({"input_tokens": 10**6}, "context of 1000064 tokens: its cache takes 131 GB"),
    ],
)
def test_what_does_not_fit_is_one_line(rows: dict[str, object], message: str) -> None:
    with pytest.raises(ReproError, match=message):
        check_fits(rows_of(**{"model": "llama3.1-8b", **rows}), on())


def test_dense_layers_and_experts_make_all_weights() -> None:
    """The authors state 671B parameters, without the layer that predicts ahead."""
    one = served(LATENT, tp=1, pp=1, ep=1, batch=1, input_tokens=512, output_tokens=64)
    assert weight_bytes(one, on()) == pytest.approx(2 * 671e9, rel=0.005)
    stages = served(LATENT, tp=1, pp=61, ep=1, batch=1, input_tokens=512, output_tokens=64)
    # The fullest stage of 61 has a mixture of 3 x 7168 x 2048 x 257 weights and attention.
    attention = 7168 * (1536 + 576 + 128 * 128) + 1536 * 128 * 192 + 512 * 128 * 256
    layer = 3 * 7168 * 2048 * 257 + attention
    tables = 129280 * 7168
    assert weight_bytes(stages, on()) == pytest.approx(2 * (layer + tables), rel=1e-6)


def test_every_rank_caches_the_whole_latent_vector() -> None:
    """A token takes 70,272 bytes: 61 layers of 512 + 64 elements (DeepSeek, ISCA 2025, table 1)."""
    for ranks in (1, 8):
        one = served(LATENT, tp=ranks, pp=1, ep=1, batch=1, input_tokens=64, output_tokens=64)
        assert cache_bytes(one, on(), 1024) == 70272 * 1024
    # Compressions have no heads, so every rank has them whole.
    one, eight = (
        served(LATENT, tp=ranks, pp=1, ep=1, batch=1, input_tokens=64, output_tokens=64)
        for ranks in (1, 8)
    )
    copied = 61 * 7168 * (1536 + 576)
    expected = (weight_bytes(one, on()) + 7 * 2 * copied) / 8
    assert weight_bytes(eight, on()) == pytest.approx(expected, rel=1e-9)
