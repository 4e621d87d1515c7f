"""params/corpus.yaml is read whole or refused by name."""

from pathlib import Path

import pytest

from repro.corpus.config import EXCERPT, FAMILIES, check_family, read_corpus_config
from repro.errors import ReproError

PARAMS = Path(__file__).parents[2] / "params" / "corpus.yaml"


def test_the_file_of_the_repository_is_valid() -> None:
    config = read_corpus_config(PARAMS)
    assert config.dump == EXCERPT
    assert config.vocabulary_sizes.model_dump() == {"gpt": 1024, "bert": 1024, "t5": 1024}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("workers: 2", "worker: 2", ["worker: unknown key"]),
        ("workers: 2", "", ["workers: this key is missing"]),
        ("workers: 2", "workers: yes", ["workers", "True", "integer"]),
        ("workers: 2", 'workers: "2"', ["workers", "'2'", "integer"]),
        ("workers: 2", "workers: 0", ["workers", "0", "greater than or equal to 1"]),
        ("  gpt: 1024", "  gpt: 256", ["vocabulary_sizes.gpt", "256", "257"]),
        ("  gpt: 1024", "  gtp: 1024", ["vocabulary_sizes"]),
        ('split: "95,5"', 'split: "949,50,1"', ["split", "949,50,1"]),
        ('split: "95,5"', 'split: "95,0"', ["split", "95,0", "both weights must be positive"]),
        ('split: "95,5"', "split: 95", ["split", "95"]),
        ('gensim_version: "4.4.0"', "gensim_version: 4.4", ["gensim_version", "4.4"]),
        ('excerpt_sha256: "a5', 'excerpt_sha256: "z5', ["excerpt_sha256", "z5"]),
        ('dump: "gensim-excerpt"', "dump:", ["dump", "None"]),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    text = PARAMS.read_text()
    assert text.count(old) == 1
    path = tmp_path / "corpus.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ReproError) as error:
        read_corpus_config(path)
    for part in [str(path), *expected]:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "dictionary"), ("- 1", "dictionary"), ("a: [", "not valid YAML")],
)
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "corpus.yaml"
    path.write_text(text)
    with pytest.raises(ReproError, match=expected):
        read_corpus_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"nowhere\.yaml: no such file"):
        read_corpus_config(tmp_path / "nowhere.yaml")


def test_families_are_told_by_name() -> None:
    assert [check_family(name) for name in ("gpt", "bert", "t5")] == list(FAMILIES)
    with pytest.raises(ReproError, match="unknown family 'gtp'; choose from: gpt, bert, t5"):
        check_family("gtp")
