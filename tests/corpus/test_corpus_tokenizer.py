"""Tokenizers: lossless where they should be, reproducible, and what Megatron asks for."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_corpus import Corpus, prose
from tokenizers import Tokenizer

from repro.corpus import vocabulary
from repro.corpus.config import FAMILIES, Family
from repro.corpus.records import Article, to_line
from repro.corpus.tokenizer import LocalTokenizer
from repro.corpus.vocabulary import train_tokenizer
from repro.errors import ReproError


def decode(tokenizer: LocalTokenizer, ids: list[int]) -> str:
    text: str = Tokenizer.from_file(str(tokenizer.path)).decode(ids, skip_special_tokens=False)
    return text


def test_gpt_loses_nothing(corpus: Corpus) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer("gpt"))
    for text in [
        *(article.text for article in corpus.articles),
        "  Spaces,\ttabs\n\n and \u65e5\u672c\u8a9e \U0001f600 never seen.",
        "<|endoftext|>",
    ]:
        (ids,) = tokenizer.tokenize_batch([text])
        assert decode(tokenizer, ids) == text
        assert tokenizer.eod not in ids
        assert len(ids) < len(text.encode()) or text == "<|endoftext|>"


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_wordpiece_loses_only_case_accents_and_spacing(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    for article in corpus.articles:
        (ids,) = tokenizer.tokenize_batch([article.text])
        decoded = decode(tokenizer, ids)
        wanted = article.text.lower().replace("\u00e9", "e")
        assert "".join(decoded.split()) == "".join(wanted.split())
        assert tokenizer.tokenize_batch([decoded]) == [ids]
        assert not {tokenizer.mask, tokenizer.eod} & set(ids)  # "[MASK]" in an article is text


@pytest.mark.parametrize("family", FAMILIES)
def test_training_twice_gives_the_same_bytes(
    corpus: Corpus, articles_file: Path, tmp_path: Path, family: Family
) -> None:
    for number in range(3):
        again = tmp_path / f"{number}.json"
        made = train_tokenizer(family, articles_file, again, vocabulary_size=1024)
        assert again.read_bytes() == corpus.tokenizer(family).read_bytes()
        assert made.vocabulary_size == 1024
        assert made.sha256 == LocalTokenizer(again).sha256


def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    # Far more characters than the alphabet may have, all equally rare: a tie to be broken.
    rare = " ".join(chr(0x0430 + i) + chr(0x10D0 + i) for i in range(32))
    articles = tmp_path / "articles.jsonl"
    lines = [to_line(Article(i, "", f"{prose(i)} {rare}")) for i in range(20)]
    articles.write_text("".join(lines), encoding="utf-8")
    for seed in ("1", "2"):
        code = (
            "import sys; from pathlib import Path; from repro.corpus import vocabulary as v; "
            "v.train_tokenizer('t5', *map(Path, sys.argv[1:]), vocabulary_size=512)"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(articles), str(tmp_path / seed)],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_dense_and_special_tokens_come_first(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    assert list(tokenizer.inv_vocab) == list(range(tokenizer.vocab_size)) == list(range(1024))
    if family == "gpt":
        assert tokenizer.inv_vocab[tokenizer.eod] == "<|endoftext|>"
        assert tokenizer.additional_special_tokens_ids == []
        for name in ("pad", "cls", "sep", "mask", "bos", "eos"):
            assert not hasattr(tokenizer, name)
        return
    names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    assert [getattr(tokenizer, name) for name in names] == list(range(7))
    assert [tokenizer.inv_vocab[i] for i in range(7)] == [f"[{n.upper()}]" for n in names]
    assert tokenizer.eod == tokenizer.eos
    sentinels = [tokenizer.inv_vocab[i] for i in tokenizer.additional_special_tokens_ids]
    assert sentinels == ([f"<extra_id_{i}>" for i in range(100)] if family == "t5" else [])
    assert tokenizer._tokenizer.decode([2, 3], skip_special_tokens=True) == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_can_be_sent_to_a_worker(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    copy = pickle.loads(pickle.dumps(tokenizer))
    texts = [prose(7), prose(8)]
    assert copy.tokenize_batch(texts) == tokenizer.tokenize_batch(texts)
    assert copy.unique_identifiers == tokenizer.unique_identifiers


def test_of_a_large_corpus_a_sample_is_learned_from(
    articles_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "LARGEST_SAMPLE_BYTES", articles_file.stat().st_size // 2 + 1)
    train_tokenizer("gpt", articles_file, tmp_path / "sampled", vocabulary_size=300)
    monkeypatch.undo()
    half = tmp_path / "half.jsonl"
    lines = articles_file.read_text(encoding="utf-8").splitlines(keepends=True)
    half.write_text("".join(lines[::2]), encoding="utf-8")
    train_tokenizer("gpt", half, tmp_path / "trained", vocabulary_size=300)
    assert (tmp_path / "sampled").read_bytes() == (tmp_path / "trained").read_bytes()


def test_a_corpus_too_small_for_the_vocabulary_is_refused(tmp_path: Path) -> None:
    articles = tmp_path / "articles.jsonl"
    articles.write_text('{"id": 1, "title": "a", "text": "so it is"}\n')
    tokenizer = tmp_path / "gpt.json"
    with pytest.raises(ReproError, match=r"gives only \d+ tokens for gpt, not 1024"):
        train_tokenizer("gpt", articles, tokenizer, vocabulary_size=1024)
    assert not tokenizer.exists()


def test_missing_or_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"nowhere\.jsonl: no such file.*repro corpus extract"):
        train_tokenizer("t5", tmp_path / "nowhere.jsonl", tmp_path / "x", vocabulary_size=1024)
    with pytest.raises(ReproError, match=r"x: no such file.*repro corpus tokenizer x"):
        LocalTokenizer(tmp_path / "x")
    (tmp_path / "x").write_text("{}")
    with pytest.raises(ReproError, match="x: not a tokenizer"):
        LocalTokenizer(tmp_path / "x")
