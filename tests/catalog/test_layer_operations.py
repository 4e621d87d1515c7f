"""A layer's operations: one list gives counts, and a new kind of layer is one function."""

from types import SimpleNamespace

from repro.catalog.models.layers import (
    classic_layer,
    count_parameters,
    forward_flops,
    layer_kinds,
)
from repro.catalog.models.open_models import read_open_models


def test_a_gpt2_layer_has_the_parameters_and_flops_of_the_appendix() -> None:
    h, s = 1024, 512
    model = SimpleNamespace(hidden_size=h, ffn_hidden_size=4 * h, attention_heads=16)
    layer = classic_layer(model)
    # 12 h^2 weights and 9 h biases; 24 s h^2 + 4 s^2 h operations (Narayanan et al., SC 2021).
    assert count_parameters(layer, 0) == 12 * h * h + 9 * h
    assert forward_flops(layer, {"own": s}) == 24 * s * h * h + 4 * s * s * h


def test_every_open_model_has_its_published_parameters() -> None:
    for model in read_open_models().values():
        shape = model.shape
        tables = ((1 if shape.tied else 2) * shape.vocab + 1) * shape.hidden
        norms = 2 * shape.layers * shape.hidden
        layers = sum(
            number * count_parameters(layer, shape.experts) for number, layer in layer_kinds(shape)
        )
        # Biases are left out.
        assert abs((layers + norms + tables) / model.parameters - 1) < 0.1, model.label
