"""Encoded word by word, a text has the tokenizer's own ids."""

import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_corpus import Corpus, prose
from tokenizers import Tokenizer, models, pre_tokenizers

from repro.corpus.config import FAMILIES, Family
from repro.corpus.tokenizer import LocalTokenizer
from repro.corpus.word_cache import text_encoder

# Blanks of all kinds, what looks like one, marks that join what is before, and what words end with.
_CHARACTERS = " \n\t\r\x0b\x1c\x85\xa0\u1680\u180e\u2003\u200b\u2028\u3000\ufeff\x00\u0301\u0345"
_PARTS = [
    *_CHARACTERS,
    *"aé'.,日(1²Ⅷ-",
    "  ",
    "'s",
    " 's",
    "word",
    "Word",
    "ﬁ",
    "İ",
    "<|endoftext|>",
]


def ids(tokenizer: LocalTokenizer, text: str) -> list[int]:
    encode = text_encoder(tokenizer, np.uint16)
    twice = {encode(text) for _ in range(2)}
    assert len(twice) == 1
    return np.frombuffer(twice.pop(), np.uint16).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_encoded_as_in_their_text(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    encode = text_encoder(tokenizer, np.uint16)

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(st.text(), st.lists(st.sampled_from(_PARTS)).map("".join)))
    def check(text: str) -> None:
        assert np.frombuffer(encode(text), np.uint16).tolist() == tokenizer.tokenize(text)

    check()
    texts = [article.text for article in corpus.articles]
    assert [ids(tokenizer, text) for text in texts] == tokenizer.tokenize_batch(texts)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_every_character_is_encoded_as_in_its_text(corpus: Corpus, family: Family) -> None:
    tokenizer = LocalTokenizer(corpus.tokenizer(family))
    encode = text_encoder(tokenizer, np.uint16)
    # Separators, marks, controls and formats: what a pre-tokenizer may take for a blank or join.
    kinds = {"Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Mc", "Me"}
    every = map(chr, range(sys.maxunicode))
    for character in (c for c in every if unicodedata.category(c) in kinds):
        text = f"a{character} b {character}c\n{character}d {character} e{character}\nf"
        assert np.frombuffer(encode(text), np.uint16).tolist() == tokenizer.tokenize(text)


def test_words_are_asked_for_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = LocalTokenizer.tokenize

    def noted(self: LocalTokenizer, text: str) -> list[int]:
        asked.append(text)
        return original(self, text)

    monkeypatch.setattr(LocalTokenizer, "tokenize", noted)
    encode = text_encoder(LocalTokenizer(corpus.tokenizer("gpt")), np.uint16)
    text = prose(5)
    for _ in range(3):
        encode(text)
    assert len(asked) == len(set(asked)) and " " + text.split()[1] in asked
    assert not set(asked) & {text}


def test_other_tokenizers_get_whole_texts(tmp_path: Path) -> None:
    other = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], 0))
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.add_special_tokens(["[EOS]"])
    other.save(str(tmp_path / "t5.json"))
    tokenizer = LocalTokenizer(tmp_path / "t5.json")
    assert tokenizer.before_word is None
    assert ids(tokenizer, "a b  a") == tokenizer.tokenize("a b  a")
