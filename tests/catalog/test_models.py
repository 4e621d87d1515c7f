"""The models that are studied, against the papers' numbers."""

import pytest

from repro.catalog.models.papers import model, read_models
from repro.catalog.models.volumes import parameters
from repro.errors import ReproError

# GPT-2's and BERT's vocabularies as published, before padding to a multiple of 128.
_UNPADDED = {"gpt": 50257, "bert": 30522, "t5": 30522}


@pytest.mark.parametrize("name", list(read_models()))
def test_full_size_parameters_agree_with_the_papers_within_the_vocabulary(name: str) -> None:
    entry = model(name)
    count = parameters(entry.family, entry.full)
    # The papers round, do not say which vocabulary they count, nor whether the output embedding
    # is a table of its own.
    table = entry.full.vocabulary_size * entry.full.hidden_size
    assert any(
        abs(count + tables * table - entry.published_parameters) < 0.03 * entry.published_parameters
        for tables in (0, 1)
    )
    assert entry.full.vocabulary_size % 128 == 0
    assert 0 <= entry.full.vocabulary_size - _UNPADDED[entry.family] < 128


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2-medium", 355), ("gpt2-large", 774), ("bert-large", 336), ("t5-large", 737)],
)
def test_full_size_parameters_are_those_of_the_well_known_models(name: str, millions: int) -> None:
    entry = model(name)
    assert round(parameters(entry.family, entry.full) / 1e6) == millions


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ReproError, match=r"unknown model 'gpt5'; choose from: gpt2-medium, "):
        model("gpt5")
