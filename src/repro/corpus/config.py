"""What `params/corpus.yaml` says, checked before anything runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, NoReturn, get_args

import yaml

from repro.errors import ReproError

Family = Literal["gpt", "bert", "t5"]
FAMILIES: tuple[Family, ...] = get_args(Family)

EXCERPT = "gensim-excerpt"
"""The value of `dump` that stands for the excerpt in the gensim wheel."""

# The smallest vocabularies that can be trained: gpt starts from 256 bytes and one special token;
# t5 from 7 special tokens, 100 sentinels and the alphabet, once as it is and once as `##x`.
_SMALLEST_VOCABULARY: Mapping[Family, int] = {"gpt": 257, "bert": 256, "t5": 512}


@dataclass(frozen=True)
class CorpusConfig:
    """The parameters of the corpus pipeline.

    Attributes
    ----------
    dump
        `"gensim-excerpt"`, a path to a `*-pages-articles.xml.bz2`, or an http(s) URL of one.
    gensim_version
        Version of the wheel that carries the excerpt.
    excerpt_sha256
        Hexadecimal SHA-256 of the excerpt.
    min_article_characters
        Shortest article that is kept, in characters of plain text.
    workers
        Number of processes that strip wiki markup.
    pages_per_shard
        Number of articles in the unit in which extraction resumes.
    vocabulary_sizes
        Number of tokens of each family's tokenizer.
    split
        Weights of training and validation, e.g. `"95,5"`.
    """

    dump: str
    gensim_version: str
    excerpt_sha256: str
    min_article_characters: int
    workers: int
    pages_per_shard: int
    vocabulary_sizes: Mapping[Family, int]
    split: str


def check_family(name: str) -> Family:
    """Tell a model family by its name.

    Parameters
    ----------
    name
        What the user wrote.

    Returns
    -------
    Family
        The same.

    Raises
    ------
    ReproError
        There is no such family.
    """
    for family in FAMILIES:
        if name == family:
            return family
    raise ReproError(f"family is {name!r}; choose from: {', '.join(FAMILIES)}")


def read_corpus_config(path: Path) -> CorpusConfig:
    """Read and check `params/corpus.yaml`.

    Parameters
    ----------
    path
        The YAML file; every field of `CorpusConfig` must be in it, and nothing else.

    Returns
    -------
    CorpusConfig
        The checked parameters.

    Raises
    ------
    ReproError
        The file is missing or not YAML, or a key is unknown, missing, of the wrong type or out of
        range.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReproError(f"{path}: no such file; it holds the corpus parameters") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ReproError(f"{path}: not valid YAML ({reason})") from None
    keys = [field.name for field in fields(CorpusConfig)]
    section = _Section(path, "", document, keys)
    return CorpusConfig(
        dump=section.text("dump", r"\S(.*\S)?", f"{EXCERPT!r}, a path or an http(s) URL"),
        gensim_version=section.text("gensim_version", r"\d+(\.\d+)+", "a version such as '4.4.0'"),
        excerpt_sha256=section.text("excerpt_sha256", "[0-9a-f]{64}", "64 hexadecimal digits"),
        min_article_characters=section.integer("min_article_characters", 1, 1_000_000),
        workers=section.integer("workers", 1, 1024),
        pages_per_shard=section.integer("pages_per_shard", 1, 1_000_000),
        vocabulary_sizes=_vocabulary_sizes(section),
        split=_split(section),
    )


def _vocabulary_sizes(section: "_Section") -> Mapping[Family, int]:
    sizes = section.subsection("vocabulary_sizes", list(FAMILIES))
    return {f: sizes.integer(f, _SMALLEST_VOCABULARY[f], 1_000_000) for f in FAMILIES}


def _split(section: "_Section") -> str:
    # Megatron reads a third weight as a test split. None is read here, and an empty one (a small
    # corpus gives it no document) would make Megatron search for samples without end.
    allowed = "two positive weights such as '95,5' (training, validation)"
    split = section.text("split", r"\d+(\.\d+)?\s*,\s*\d+(\.\d+)?", allowed)
    if min(float(weight) for weight in split.split(",")) <= 0:
        section.refuse("split", split, allowed)
    return split


class _Section:
    """One mapping of the file: refuses what is not expected, naming file, key and value."""

    def __init__(self, path: Path, prefix: str, values: object, keys: list[str]) -> None:
        self._path, self._prefix = path, prefix
        if not isinstance(values, dict):
            self.refuse("", values, f"a mapping with the keys {', '.join(keys)}")
        self._values = values
        for key in values:
            if key not in keys:
                self._refuse_key(f"unknown key {key!r}", keys)
        for key in keys:
            if key not in values:
                self._refuse_key(f"missing key {key!r}", keys)

    def text(self, key: str, pattern: str, allowed: str) -> str:
        value = self._values[key]
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            self.refuse(key, value, allowed)
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._values[key]
        # bool is an int in Python, and YAML 1.1 reads `yes` as True.
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, value, f"an integer from {low} to {high}")
        return value

    def subsection(self, key: str, keys: list[str]) -> "_Section":
        return _Section(self._path, f"{self._prefix}{key}.", self._values[key], keys)

    def refuse(self, key: str, value: object, allowed: str) -> NoReturn:
        name = f"{self._prefix}{key}".rstrip(".") or "the file"
        raise ReproError(f"{self._path}: {name} is {value!r}; allowed: {allowed}")

    def _refuse_key(self, what: str, keys: list[str]) -> NoReturn:
        where = f" in {self._prefix.rstrip('.')}" if self._prefix else ""
        raise ReproError(f"{self._path}: {what}{where}; the keys are {', '.join(keys)}")
