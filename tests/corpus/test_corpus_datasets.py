"""What the training ranks get: checked against the corpus, sample by sample."""

import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.t5_dataset import (
    T5MaskedWordPieceDataset,
)
from rank_pool import RankPool
from synthetic_corpus import Corpus

from repro.corpus import datasets as module
from repro.corpus.config import FAMILIES, Family
from repro.corpus.datasets import build_datasets
from repro.corpus.indexed import write_indexed
from repro.corpus.records import to_line
from repro.corpus.t5 import decoder_tokens_needed
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError

pytestmark = pytest.mark.slow

TRAIN, VALID = 300, 20


def build(family: Family, data_dir: Path, cache: Path, **changed: Any) -> tuple[Any, Any]:
    arguments: dict[str, Any] = {
        "sequence_length": 64,
        "decoder_sequence_length": 20 if family == "t5" else None,
        "train_samples": TRAIN,
        "valid_samples": VALID,
        "seed": 1,
        "split": "90,10",
        "cache_dir": cache,
    }
    train, valid = build_datasets(family, data_dir, **(arguments | changed))
    return train, valid


def all_tokens(corpus: Corpus, family: Family) -> list[list[int]]:
    """Give the tokens of every document."""
    indexed = IndexedDataset(str(corpus.prefix(family)))
    ends = indexed.document_indices
    return [[int(t) for i in range(low, high) for t in indexed[i]] for low, high in pairwise(ends)]


def text_of(ids: list[int]) -> str:
    return ",".join(map(str, ids)) + ","


@pytest.mark.parametrize("family", FAMILIES)
def test_one_process_without_a_process_group_is_enough(
    corpus: Corpus, tmp_path: Path, family: Family
) -> None:
    assert not dist.is_initialized()
    train, valid = build(family, corpus.data_dir, tmp_path)
    assert not dist.is_initialized()
    assert len(train) >= TRAIN and len(valid) >= VALID
    # As many samples as were asked for, however many epochs they take.
    longer, _ = build(family, corpus.data_dir, tmp_path, train_samples=5000)
    assert len(longer) >= 5000
    longer[4999]


def test_gpt_labels_are_the_tokens_shifted_by_one(corpus: Corpus, tmp_path: Path) -> None:
    train, valid = build("gpt", corpus.data_dir, tmp_path)
    eod = LocalTokenizer(corpus.tokenizer("gpt")).eod
    documents = all_tokens(corpus, "gpt")
    whole = [text_of(document) for document in documents]
    cut = round(0.9 * len(documents))
    for dataset, allowed in ((train, whole[:cut]), (valid, whole[cut:])):
        for number in range(len(dataset)):
            sample = dataset[number]
            tokens, labels = sample["tokens"].tolist(), sample["labels"].tolist()
            assert len(tokens) == len(labels) == 64
            assert labels[:-1] == tokens[1:]
            assert sample["loss_mask"].tolist() == [1.0] * 64
            # Every stretch up to an end of document lies in one document of the right split.
            stretch = [tokens[0]]
            for token in labels:
                stretch.append(token)
                if token == eod:
                    assert any(text_of(stretch) in text for text in allowed)
                    stretch = []
            assert not stretch or any(text_of(stretch) in text for text in allowed)
    assert set(train[0]) == {"tokens", "labels", "loss_mask", "position_ids"}


def test_bert_masks_fifteen_percent_and_can_be_restored(corpus: Corpus, tmp_path: Path) -> None:
    train, _ = build("bert", corpus.data_dir, tmp_path)
    tokenizer = LocalTokenizer(corpus.tokenizer("bert"))
    whole = [text_of(document) for document in all_tokens(corpus, "bert")]
    masked = real = as_mask = unchanged = 0
    for number in range(TRAIN):
        sample = train[number]
        length = int(sample["padding_mask"].sum())
        assert set(sample["padding_mask"][:length]) == {1}
        assert not sample["text"][length:].any() and not sample["types"][length:].any()
        chosen = sample["loss_mask"] == 1
        assert (sample["labels"][~chosen] == -1).all()
        assert not chosen[length:].any()
        masked, real = masked + chosen.sum(), real + length
        as_mask += (sample["text"][chosen] == tokenizer.mask).sum()
        unchanged += (sample["text"][chosen] == sample["labels"][chosen]).sum()
        restored = np.where(chosen, sample["labels"], sample["text"])[:length].tolist()
        assert restored[0] == tokenizer.cls and restored[-1] == tokenizer.sep
        middle = restored.index(tokenizer.sep)
        for half in (restored[1:middle], restored[middle + 1 : -1]):
            assert half and any(text_of(half) in text for text in whole)
        assert sample["types"][:length].tolist() == [0] * (middle + 1) + [1] * (length - middle - 1)
    assert 0.13 < masked / real <= 0.155
    assert 0.77 < as_mask / masked < 0.83
    assert 0.07 < unchanged / masked < 0.13


@pytest.mark.parametrize(("encoder", "decoder"), [(64, 20), (64, 13), (128, 128)])
def test_t5_sentinels_agree_and_the_text_can_be_put_together(
    corpus: Corpus, tmp_path: Path, encoder: int, decoder: int
) -> None:
    train, _ = build(
        "t5",
        corpus.data_dir,
        tmp_path,
        sequence_length=encoder,
        decoder_sequence_length=decoder,
        train_samples=2000,
    )
    tokenizer = LocalTokenizer(corpus.tokenizer("t5"))
    sentinels = tokenizer.additional_special_tokens_ids
    whole = [text_of(document) for document in all_tokens(corpus, "t5")]
    masked = real = empty = 0
    for number in range(2000):
        sample = train[number]
        source = sample["text_enc"][sample["enc_mask"] == 1].tolist()
        read = sample["text_dec"][sample["dec_mask"] == 1].tolist()
        written = sample["labels"][sample["loss_mask"] == 1].tolist()
        assert read[0] == tokenizer.bos and written[-1] == tokenizer.eos
        assert read[1:] == written[:-1]
        in_source = [token for token in source if token in sentinels]
        assert in_source == [token for token in written if token in sentinels]
        assert in_source == sentinels[: len(in_source)]
        empty += not in_source
        spans: dict[int, list[int]] = {}
        for token in read[1:]:
            if token in sentinels:
                spans[token] = []
                last = token
            else:
                spans[last].append(token)
        assert all(spans.values())
        original = [t for token in source for t in spans.get(token, [token])]
        assert any(text_of(original) in text for text in whole)
        assert tokenizer.mask not in original
        masked, real = masked + sum(map(len, spans.values())), real + len(original)
    assert 0.12 < masked / real <= 0.155
    # 15 % of a very short sample is less than its shortest word.
    assert empty < 0.03 * 2000


def test_megatron_alone_fails_on_the_tight_decoder(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, configuration = module._CLASSES["t5"]
    monkeypatch.setitem(module._CLASSES, "t5", (T5MaskedWordPieceDataset, configuration))
    train, _ = build(
        "t5", corpus.data_dir, tmp_path, decoder_sequence_length=13, train_samples=2000
    )
    with pytest.raises(AssertionError):
        for number in range(2000):
            train[number]


def test_the_usual_t5_lengths_are_allowed() -> None:
    assert decoder_tokens_needed(512) == 1 + 76 + 26 <= 128
    assert decoder_tokens_needed(64) == 1 + 9 + 3


# --- the cache -----------------------------------------------------------------------------------


def folder(cache: Path) -> dict[str, int]:
    return {str(p.relative_to(cache)): p.stat().st_mtime_ns for p in cache.rglob("*")}


def no_building(*_: object) -> None:
    raise AssertionError("the indices were built again")


@pytest.mark.parametrize("family", FAMILIES)
def test_indices_are_reused(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Family
) -> None:
    first, _ = build(family, corpus.data_dir, tmp_path)
    before = folder(tmp_path)
    assert len([name for name in before if "/" not in name]) == 1
    monkeypatch.setattr(module, "build_indices", no_building)
    second, _ = build(family, corpus.data_dir, tmp_path)
    assert folder(tmp_path) == before
    for key, value in first[17].items():
        assert np.array_equal(value, second[17][key])
    for change in ({"seed": 2}, {"train_samples": TRAIN + 1}, {"split": "80,20"}):
        with pytest.raises(AssertionError, match="built again"):
            build(family, corpus.data_dir, tmp_path, **change)


def _index_anew(data_dir: Path, articles: Path) -> None:
    """Write BERT's dataset of other articles, with the tokenizer that is there."""
    write_indexed(
        "bert",
        articles,
        data_dir / "tokenizers/bert.json",
        data_dir / "datasets/bert",
        data_dir / "manifests/bert.json",
        workers=1,
    )


def test_a_replaced_corpus_gets_new_indices(corpus: Corpus, tmp_path: Path) -> None:
    data_dir, articles = tmp_path / "enwiki", tmp_path / "articles.jsonl"
    shutil.copytree(corpus.data_dir, data_dir)
    train, _ = build("bert", data_dir, tmp_path / "cache")
    kept = corpus.articles[:30]
    articles.write_text("".join(to_line(article) for article in kept), encoding="utf-8")
    _index_anew(data_dir, articles)
    smaller, _ = build("bert", data_dir, tmp_path / "cache")
    assert smaller.sample_index.max() <= smaller.dataset.sequence_lengths.size
    assert train.sample_index.max() > smaller.dataset.sequence_lengths.size


def test_an_interrupted_build_leaves_no_cache(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = np.save

    def failing(path: Any, *rest: Any, **options: Any) -> None:
        original(path, *rest, **options)
        if "valid" in str(path):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "save", failing)
        build("gpt", corpus.data_dir, tmp_path)
    assert list(tmp_path.iterdir()) == []
    build("gpt", corpus.data_dir, tmp_path)


def _on_one_of_two(data_dir: Path, cache: Path) -> list[tuple[int, int, list[int]]]:
    """A rank's task."""
    if dist.get_rank() == 0:
        time.sleep(0.5)  # the other must wait for it
    found = []
    for family, key in (("gpt", "tokens"), ("t5", "text_enc")):
        train, valid = build(family, data_dir, cache)
        found.append((len(train), len(valid), [int(token) for token in train[TRAIN - 1][key]]))
    return found


def test_two_ranks_share_one_cache(pool: RankPool, corpus: Corpus, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one, other = pool.run(_on_one_of_two, corpus.data_dir, cache, ranks=2)
    assert one == other and len(one) == 2
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["gpt", "t5"]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changed", "expected"),
    [
        ("gpt", {"sequence_length": 8}, "sequence_length is 8; it must be from 16"),
        ("gpt", {"train_samples": 0}, "train_samples is 0"),
        ("gpt", {"seed": 0}, "seed is 0"),
        ("gpt", {"split": "949,50,1"}, "split is '949,50,1'; it must be two weights"),
        ("gpt", {"decoder_sequence_length": 20}, "gpt has no decoder"),
        ("t5", {"decoder_sequence_length": None}, "decoder_sequence_length is None"),
        ("t5", {"decoder_sequence_length": 12}, "t5 needs at least 13"),
        ("bert", {"split": "1000,1"}, "leaves none that bert can use for valid"),
        ("gpt", {"split": "1,1000"}, "leaves none that gpt can use for train"),
    ],
)
def test_wrong_arguments_are_named(
    corpus: Corpus, tmp_path: Path, family: Family, changed: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ReproError, match=expected):
        build(family, corpus.data_dir, tmp_path, **changed)


@pytest.mark.parametrize("missing", ["datasets/gpt.idx", "datasets/gpt.bin", "tokenizers/gpt.json"])
def test_missing_files_are_named(corpus: Corpus, tmp_path: Path, missing: str) -> None:
    data_dir = tmp_path / "enwiki"
    shutil.copytree(corpus.data_dir, data_dir)
    (data_dir / missing).unlink()
    with pytest.raises(ReproError, match=f"{missing}: no such file; fix: run `repro corpus"):
        build("gpt", data_dir, tmp_path / "cache")


def test_documents_of_one_sentence_are_no_use_to_bert(corpus: Corpus, tmp_path: Path) -> None:
    data_dir, articles = tmp_path / "enwiki", tmp_path / "articles.jsonl"
    shutil.copytree(corpus.data_dir, data_dir)
    articles.write_text('{"id": 1, "title": "a", "text": "One sentence."}\n' * 40)
    _index_anew(data_dir, articles)
    with pytest.raises(ReproError, match="none that bert can use for train"):
        build("bert", data_dir, tmp_path / "cache")
