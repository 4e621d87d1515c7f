"""params/corpus.yaml is read whole or refused by name."""

from pathlib import Path

import pytest

from repro.corpus.config import EXCERPT, FAMILIES, check_family, read_corpus_config
from repro.errors import ReproError

PARAMS = Path(__file__).parents[2] / "params" / "corpus.yaml"


def test_the_file_of_the_repository_is_valid() -> None:
    config = read_corpus_config(PARAMS)
    assert config.dump == EXCERPT
    assert dict(config.vocabulary_sizes) == {"gpt": 1024, "bert": 1024, "t5": 1024}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("workers: 2", "worker: 2", ["unknown key 'worker'", "workers"]),
        ("workers: 2", "", ["missing key 'workers'"]),
        ("workers: 2", "workers: yes", ["workers", "True", "1 to 1024"]),
        ("workers: 2", 'workers: "2"', ["workers", "'2'", "integer"]),
        ("workers: 2", "workers: 0", ["workers", "0", "1 to 1024"]),
        ("  gpt: 1024", "  gpt: 256", ["vocabulary_sizes.gpt", "256", "257"]),
        ("  gpt: 1024", "  gtp: 1024", ["'gtp'", "vocabulary_sizes", "gpt, bert, t5"]),
        ('split: "95,5"', 'split: "949,50,1"', ["split", "949,50,1", "two positive weights"]),
        ('split: "95,5"', 'split: "95,0"', ["split", "95,0"]),
        ('split: "95,5"', "split: 95", ["split", "95", "two positive weights"]),
        ('gensim_version: "4.4.0"', "gensim_version: 4.4", ["gensim_version", "4.4"]),
        ('excerpt_sha256: "a5', 'excerpt_sha256: "z5', ["excerpt_sha256", "64 hexadecimal"]),
        ('dump: "gensim-excerpt"', "dump:", ["dump", "None", "gensim-excerpt"]),
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
    [("", "a mapping"), ("- 1", "a mapping"), ("a: [", "not valid YAML")],
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
    with pytest.raises(ReproError, match="family is 'gtp'; choose from: gpt, bert, t5"):
        check_family("gtp")
