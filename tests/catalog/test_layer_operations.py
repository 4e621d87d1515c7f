"""A layer's operations: one list gives counts, and a new kind of layer is one function."""

from types import SimpleNamespace

from repro.catalog.models.layers import (
    Linear,
    Operation,
    Scores,
    classic_layer,
    count_parameters,
    decoder_layer,
    forward_flops,
    products,
)
from repro.catalog.models.open_models import read_open_models


def test_a_gpt2_layer_has_the_parameters_and_flops_of_the_appendix() -> None:
    h, s = 1024, 512
    layer = classic_layer(SimpleNamespace(hidden_size=h, ffn_hidden_size=4 * h))
    # 12 h^2 weights and 9 h biases; 24 s h^2 + 4 s^2 h operations (Narayanan et al., SC 2021).
    assert count_parameters(layer, 0) == 12 * h * h + 9 * h
    assert forward_flops(layer, {"own": s}) == 24 * s * h * h + 4 * s * s * h


def test_every_open_model_has_its_published_parameters() -> None:
    for model in read_open_models().values():
        shape = model.shape
        tables = (2 * shape.vocab + 1) * shape.hidden
        norms = 2 * shape.layers * shape.hidden
        layers = shape.layers * count_parameters(decoder_layer(shape), shape.experts)
        # Biases, and tables that are tied, are left out.
        assert abs((layers + norms + tables) / model.parameters - 1) < 0.1, model.label


def _latent_layer(h: int, heads: int, rank: int, width: int) -> list[Operation]:
    """Attention to keys and values that are kept as one narrow vector (DeepSeek-V2, 2024)."""
    return [
        Linear("queries", h, heads * width, "outputs"),
        Linear("compressed keys, values", h, rank, None),
        Linear("keys, values", rank, 2 * heads * width, "outputs"),
        Scores(heads * width),
        Linear("attention output", heads * width, h, "inputs"),
    ]


def test_a_new_kind_of_layer_is_a_list_that_every_count_reads() -> None:
    h, heads, rank, width, tokens = 512, 8, 64, 32, 100
    layer = _latent_layer(h, heads, rank, width)
    weights = 2 * h * heads * width + h * rank + rank * 2 * heads * width
    assert count_parameters(layer, 0) == weights
    scores = 4 * tokens**2 * heads * width
    assert forward_flops(layer, {"own": tokens}) == 2 * tokens * weights + scores
    # The compression is on every rank: only three products are divided.
    assert len(products(layer)) == 3
