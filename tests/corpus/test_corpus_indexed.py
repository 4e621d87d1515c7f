"""The .bin and .idx hold the tokenizer's tokens of every article, in order."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder
from synthetic_corpus import Corpus, words

from repro.corpus.config import FAMILIES, Family
from repro.corpus.indexed import LONGEST_SENTENCE, write_indexed
from repro.corpus.records import Article, to_line
from repro.corpus.sentences import split_sentences
from repro.corpus.shards import Share
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError


def write(family: Family, articles: Path, tokenizer: Path, prefix: Path, **changed: Any) -> Any:
    """Tokenize, and give the manifest; None while other shares are not done."""
    manifest = prefix.parent.with_name(f"{prefix.parent.name}-manifests") / f"{family}.json"
    done = write_indexed(family, articles, tokenizer, prefix, manifest, **{"workers": 2} | changed)
    return json.loads(manifest.read_text()) if done else None


def both(prefix: Path) -> tuple[bytes, bytes]:
    bin_path, idx_path = (prefix.with_name(prefix.name + end) for end in (".bin", ".idx"))
    return bin_path.read_bytes(), idx_path.read_bytes()


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
def test_the_files_are_what_megatrons_builder_writes(
    corpus: Corpus, tmp_path: Path, family: Family
) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    dtype = DType.optimal_dtype(tokenizer.vocab_size)
    builder = IndexedDatasetBuilder(str(tmp_path / "own.bin"), dtype=dtype)
    for article in corpus.articles:
        texts = [article.text] if family == "gpt" else split_sentences(article.text)
        sequences = tokenizer.tokenize_batch(texts)
        if family == "gpt":
            sequences[0].append(tokenizer.eod)
        builder.add_document([t for ids in sequences for t in ids], [len(s) for s in sequences])
    builder.finalize(str(tmp_path / "own.idx"))
    assert both(corpus.prefix(family)) == both(tmp_path / "own")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_the_bytes_do_not_depend_on_workers_shares_and_shards(
    corpus: Corpus, articles_file: Path, tmp_path: Path, family: Family
) -> None:
    tokenizer = corpus.tokenizer(family)
    for count in (1, 2, 5):
        prefix = tmp_path / str(count) / family
        made = write(family, articles_file, tokenizer, prefix, workers=count, shard_bytes=5000)
        assert both(prefix) == both(corpus.prefix(family))
        indexed = IndexedDataset(str(prefix))
        assert indexed.index.dtype is np.uint16
        assert (
            made["documents"] == len(corpus.articles) == sum(made["documents_of_tokens"].values())
        )
        assert made["sequences"] == len(indexed)
        assert made["tokens"] == indexed.sequence_lengths.sum() == made["bin_bytes"] / 2
        shared = tmp_path / f"shared-{count}" / family
        for number in reversed(range(count)):
            share = Share(number, count)
            write(family, articles_file, tokenizer, shared, share=share, shard_bytes=5000)
        assert write(family, articles_file, tokenizer, shared, shard_bytes=5000) == made
        assert both(shared) == both(corpus.prefix(family))
        assert len(list(shared.parent.iterdir())) == 2


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on(
    corpus: Corpus, articles_file: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from repro.corpus import indexed as i; "
        "o = i.split_sentences; i.split_sentences = lambda t: (time.sleep(0.02), o(t))[1]; "
        "print('begun', flush=True); a = [Path(p) for p in sys.argv[1:]]; "
        "i.write_indexed('bert', *a, workers=2, shard_bytes=5000); print('done', flush=True)"
    )
    prefix, tokenizer = tmp_path / "bert", corpus.tokenizer("bert")
    arguments = [articles_file, tokenizer, prefix, tmp_path / "bert.json"]
    source = random.Random(5)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(source.uniform(0.1, 1.0))
        process.send_signal(signal.SIGKILL)
        if process.communicate()[0]:
            break
    write("bert", articles_file, tokenizer, prefix, shard_bytes=5000)
    assert both(prefix) == both(corpus.prefix("bert"))
    assert not list(tmp_path.glob("*.parts-*"))


@pytest.mark.parametrize("words", [65_499, 65_500])
def test_large_vocabularies_get_wider_tokens(
    corpus: Corpus, articles_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    original = LocalTokenizer.__init__

    def enlarged(self: LocalTokenizer, path: Path) -> None:
        original(self, path)
        self.vocab_size = words

    monkeypatch.setattr(LocalTokenizer, "__init__", enlarged)
    write("gpt", articles_file, corpus.tokenizer("gpt"), tmp_path / "gpt")
    assert IndexedDataset(str(tmp_path / "gpt")).index.dtype is DType.optimal_dtype(words)


def test_long_sentences_are_cut_between_words(corpus: Corpus, tmp_path: Path) -> None:
    articles = tmp_path / "articles.jsonl"
    text = "Short. " + " ".join(words(99, 2000)).capitalize() + ". Short."
    articles.write_text(to_line(Article(1, "Long", text)), encoding="utf-8")
    write("bert", articles, corpus.tokenizer("bert"), tmp_path / "bert")
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
    write("gpt", articles, corpus.tokenizer("gpt"), prefix)
    before = both(prefix)
    articles.write_text(good + "{\n", encoding="utf-8")
    with pytest.raises(
        ReproError, match=f"the line at byte {len(good.encode())} is not an article"
    ):
        write("gpt", articles, corpus.tokenizer("gpt"), prefix)
    assert both(prefix) == before


def test_a_crash_between_the_two_files_leaves_no_pair_of_different_age(
    corpus: Corpus, articles_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "gpt"
    write("gpt", articles_file, corpus.tokenizer("gpt"), prefix)
    original = os.replace

    def crashing(source: Path, target: Path) -> None:
        if target == prefix.with_name("gpt.idx"):
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(os, "replace", crashing)
    with pytest.raises(KeyboardInterrupt):
        write("gpt", articles_file, corpus.tokenizer("gpt"), prefix)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["gpt.bin"]
