"""Models with open weights have the parameters that their authors state."""

from typing import Any

import pytest

from repro.catalog.models.open_models import OpenModel, open_model, read_open_models
from repro.errors import ReproError


@pytest.mark.parametrize("name", list(read_open_models()))
def test_parameters_are_the_published_ones(name: str) -> None:
    entry = open_model(name)
    counted = entry.shape.count(entry.shape.experts)
    # Authors round to three digits, and to 235B and 22B.
    assert counted == pytest.approx(entry.parameters, rel=0.005)


@pytest.mark.parametrize(
    "name", [name for name, entry in read_open_models().items() if entry.active_parameters]
)
def test_a_token_meets_the_published_part(name: str) -> None:
    entry = open_model(name)
    active = entry.shape.count(entry.shape.experts_per_token)
    # GPT-OSS's card leaves out the embeddings of its input, and biases are not counted here.
    without_input = active - entry.shape.vocab * entry.shape.hidden
    published = entry.active_parameters
    assert any(count == pytest.approx(published, rel=0.02) for count in (active, without_input))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"expert_parallel": 3},
            "expert_parallel 3 does not divide 8 experts; fix: choose a",
        ),
        (
            {"testbed": {"experts": 0}},
            "shape has 8 experts, testbed 0; fix: give experts to both",
        ),
        ({"testbed": {"window": 8}}, "window 8: not in testbed layers; fix: remove testbed"),
    ],
)
def test_what_cannot_be_trained_alike_is_refused(changed: dict[str, Any], reason: str) -> None:
    given = open_model("mixtral-8x7b").model_dump()
    with pytest.raises(ValueError, match=reason):
        OpenModel.model_validate(
            given | changed | {"testbed": given["testbed"] | changed.get("testbed", {})}
        )


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ReproError, match=r"unknown model 'llama9'; choose from: tinyllama-1.1b, "):
        open_model("llama9")
