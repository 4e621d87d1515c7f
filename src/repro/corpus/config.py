"""Schema of `params/corpus.yaml`, checked before anything runs."""

from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field, StrictInt, field_validator

from repro.catalog.models.papers import Family
from repro.catalog.reading import Entry, choose, read_yaml

FAMILIES: tuple[Family, ...] = get_args(Family)

EXCERPT = "gensim-excerpt"
"""The value of `dump` that selects the excerpt in the gensim wheel."""

_Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]


class VocabularySizes(Entry):
    """Number of tokens of each family's tokenizer, including special tokens.

    The minimum is the smallest trainable size. GPT starts with 256 bytes and one special token. T5
    starts with 7 special tokens, 100 sentinels and two tokens per character (`x` and `##x`).
    """

    gpt: Annotated[StrictInt, Field(ge=257, le=1_000_000)]
    bert: Annotated[StrictInt, Field(ge=256, le=1_000_000)]
    t5: Annotated[StrictInt, Field(ge=512, le=1_000_000)]

    def of(self, family: Family) -> int:
        """Return the size for one family."""
        return {"gpt": self.gpt, "bert": self.bert, "t5": self.t5}[family]


class CorpusConfig(Entry):
    """Parameters of the corpus pipeline.

    Attributes
    ----------
    dump
        `"gensim-excerpt"`, a path to a `*-pages-articles.xml.bz2`, or an http(s) URL of one.
    gensim_version
        Version of the gensim wheel that contains the excerpt.
    excerpt_sha256
        Hexadecimal SHA-256 of the excerpt.
    min_article_characters
        Minimum length of an article, in characters of plain text; shorter ones are dropped.
    workers
        Number of processes that extract and tokenize.
    vocabulary_sizes
        Number of tokens of each family's tokenizer, if it is trained here.
    tokenizer_files
        Published tokenizers by family: `vocab.json` (gpt), `vocab.txt` (bert), `spiece.model` (t5).
    split
        Weights of training and validation, e.g. `"95,5"`.
    """

    dump: Annotated[str, Field(pattern=r"^\S(.*\S)?$")]
    gensim_version: Annotated[str, Field(pattern=r"^\d+(\.\d+)+$")]
    excerpt_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    min_article_characters: _Count
    workers: Annotated[StrictInt, Field(ge=1, le=1024)]
    vocabulary_sizes: VocabularySizes
    tokenizer_files: dict[Family, str]
    split: Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*,\s*\d+(\.\d+)?$")]

    @field_validator("split")
    @classmethod
    def _two_positive_weights(cls, split: str) -> str:
        # Megatron searches forever for samples in a split without documents.
        if min(float(weight) for weight in split.split(",")) <= 0:
            raise ValueError("both weights must be positive, such as '95,5'")
        return split


def read_corpus_config(path: Path) -> CorpusConfig:
    """Read and check `params/corpus.yaml`.

    Raises
    ------
    ReproError
        The file is missing or not YAML, or a key is unknown, missing, of the wrong type or out of
        range.
    """
    config: CorpusConfig = read_yaml(path, CorpusConfig)
    return config


def check_family(name: str) -> Family:
    """Return a family by its name; raise a `ReproError` with the valid names for other names."""
    return choose("family", name, {family: family for family in FAMILIES})
