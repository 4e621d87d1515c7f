"""A small synthetic dump and a small synthetic corpus."""

import bz2
from collections.abc import Sequence
from pathlib import Path

import pytest
from synthetic_corpus import HEAD, TAIL, Corpus, FakePage, MakeDump, prose

from repro.corpus.config import FAMILIES
from repro.corpus.indexed import write_indexed
from repro.corpus.records import Article, read_articles, to_line
from repro.corpus.vocabulary import train_tokenizer


@pytest.fixture
def make_dump(tmp_path: Path) -> MakeDump:
    """Write pages as a dump of one bzip2 stream, or of one for every `pages_per_stream` pages."""

    def make(
        pages: Sequence[FakePage], name: str = "dump.xml.bz2", pages_per_stream: int | None = None
    ) -> Path:
        step = pages_per_stream or max(1, len(pages))
        blocks = [
            "".join(page.xml() for page in pages[start : start + step])
            for start in range(0, len(pages), step)
        ] or [""]
        blocks[0] = HEAD + blocks[0]
        blocks[-1] += TAIL
        path = tmp_path / name
        path.write_bytes(b"".join(bz2.compress(block.encode()) for block in blocks))
        return path

    return make


@pytest.fixture(scope="session")
def articles_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("articles") / "articles.jsonl"
    articles = [Article(number, f"Page {number}", prose(number)) for number in range(1, 61)]
    # What looks like a special token is text here.
    articles.append(Article(61, "Page 61", "He wrote <|endoftext|> and [MASK] here. " + prose(61)))
    path.write_text("".join(to_line(article) for article in articles), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def corpus(articles_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    made = Corpus(tmp_path_factory.mktemp("enwiki"), list(read_articles(articles_file, "test")))
    for family in FAMILIES:
        train_tokenizer(family, articles_file, made.tokenizer(family), vocabulary_size=1024)
        write_indexed(
            family,
            articles_file,
            made.tokenizer(family),
            made.prefix(family),
            made.data_dir / "manifests" / f"{family}.json",
            workers=1,
        )
    return made
