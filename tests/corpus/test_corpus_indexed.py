"""The .bin and .idx hold the tokenizer's tokens of every article, in order."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDataset
from synthetic_corpus import Corpus, words

from repro.corpus.config import FAMILIES, Family
from repro.corpus.indexed import LONGEST_SENTENCE, write_indexed
from repro.corpus.records import Article, to_line
from repro.corpus.sentences import split_sentences
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError


def documents(indexed: IndexedDataset) -> list[list[list[int]]]:
    """Give the sequences of every document."""
    ends = indexed.document_indices
    return [[indexed[i].tolist() for i in range(low, high)] for low, high in pairwise(ends)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_article_is_there_token_by_token(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    found = documents(IndexedDataset(str(corpus.prefix(family))))
    assert len(found) == len(corpus.articles) == 61
    for article, sequences in zip(corpus.articles, found, strict=True):
        (ids,) = tokenizer.tokenize_batch([article.text])
        if family == "gpt":
            assert sequences == [[*ids, tokenizer.eod]]
        else:
            assert [token for sequence in sequences for token in sequence] == ids
            sentences = split_sentences(article.text)
            assert sequences == tokenizer.tokenize_batch(sentences)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_summary_agrees_with_the_files(
    corpus: Corpus, articles_file: Path, tmp_path: Path, family: Family
) -> None:
    prefix = tmp_path / "datasets" / family
    made = write_indexed(family, articles_file, corpus.tokenizer(family), prefix)
    indexed = IndexedDataset(str(prefix))
    assert indexed.index.dtype is np.uint16
    assert made.documents == len(corpus.articles)
    assert made.sequences == len(indexed)
    assert made.tokens == indexed.sequence_lengths.sum()
    assert made.size_bytes == 2 * made.tokens == (prefix.parent / f"{family}.bin").stat().st_size
    for suffix in (".bin", ".idx"):
        first = corpus.prefix(family).with_suffix(suffix).read_bytes()
        assert prefix.with_suffix(suffix).read_bytes() == first
    assert len(list(prefix.parent.iterdir())) == 2


def test_large_vocabularies_get_wider_tokens(
    corpus: Corpus, articles_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalTokenizer.__init__

    def enlarged(self: LocalTokenizer, path: Path) -> None:
        original(self, path)
        self.vocab_size = 70_000

    monkeypatch.setattr(LocalTokenizer, "__init__", enlarged)
    write_indexed("gpt", articles_file, corpus.tokenizer("gpt"), tmp_path / "gpt")
    assert IndexedDataset(str(tmp_path / "gpt")).index.dtype is np.int32


def test_long_sentences_are_cut_between_words(corpus: Corpus, tmp_path: Path) -> None:
    articles = tmp_path / "articles.jsonl"
    text = "Short. " + " ".join(words(99, 2000)).capitalize() + ". Short."
    articles.write_text(to_line(Article(1, "Long", text)), encoding="utf-8")
    write_indexed("bert", articles, corpus.tokenizer("bert"), tmp_path / "bert")
    tokenizer = LocalTokenizer(corpus.tokenizer("bert"))
    (sequences,) = documents(IndexedDataset(str(tmp_path / "bert")))
    (ids,) = tokenizer.tokenize_batch([text])
    assert [token for sequence in sequences for token in sequence] == ids
    lengths = [len(sequence) for sequence in sequences]
    assert max(lengths) <= LONGEST_SENTENCE and len(lengths) > 5
    assert min(lengths[1:-2]) > LONGEST_SENTENCE - 20
    assert not any(tokenizer.inv_vocab[s[0]].startswith("##") for s in sequences)


def test_a_failure_leaves_the_earlier_files(corpus: Corpus, tmp_path: Path) -> None:
    articles = tmp_path / "articles.jsonl"
    prefix = tmp_path / "datasets" / "gpt"
    good = "".join(to_line(article) for article in corpus.articles[:3])
    articles.write_text(good, encoding="utf-8")
    write_indexed("gpt", articles, corpus.tokenizer("gpt"), prefix)
    before = {path.name: path.read_bytes() for path in prefix.parent.iterdir()}
    articles.write_text(good + "{\n", encoding="utf-8")
    with pytest.raises(ReproError, match="line 4"):
        write_indexed("gpt", articles, corpus.tokenizer("gpt"), prefix)
    assert {path.name: path.read_bytes() for path in prefix.parent.iterdir()} == before


def test_a_crash_between_the_two_files_leaves_no_pair_of_different_age(
    corpus: Corpus, articles_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "gpt"
    write_indexed("gpt", articles_file, corpus.tokenizer("gpt"), prefix)
    original = os.replace

    def crashing(source: Path, target: Path) -> None:
        if target.suffix == ".idx":
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(os, "replace", crashing)
    with pytest.raises(KeyboardInterrupt):
        write_indexed("gpt", articles_file, corpus.tokenizer("gpt"), prefix)
    assert [path.name for path in tmp_path.iterdir()] == ["gpt.bin"]
