"""Token ids of texts, word by word: most words have been met before, and are looked up."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from repro.corpus.tokenizer import LocalTokenizer

_MOST_WORDS = 1 << 19
"""Whose ids are kept, the latest used ones: about 100 MB."""


class _Untidy(Exception):
    """White space other than one blank or line end between two words."""


def text_encoder(tokenizer: LocalTokenizer, dtype: type[np.generic]) -> Callable[[str], bytes]:
    """Give a function that encodes texts, several times as fast where words repeat.

    GPT-2's pre-tokenizer cuts before a blank between two words and around a line end, BERT's at
    both, and no part's ids depend on another part. So the tokenizer is asked once for each word;
    for the whole text where its white space is of another kind, or its pre-tokenizer is.

    Parameters
    ----------
    tokenizer
        Any tokenizer.
    dtype
        Of the ids.

    Returns
    -------
    Callable
        From a text to the bytes of the ids that `tokenize_batch` gives.
    """

    def encode(text: str) -> bytes:
        return np.array(tokenizer.tokenize(text), dtype).tobytes()

    before_word = tokenizer.before_word
    if before_word is None:
        return encode

    @lru_cache(_MOST_WORDS)
    def first(word: str) -> bytes:
        return encode(_tidy(word))

    @lru_cache(_MOST_WORDS)
    def later(word: str) -> bytes:
        return encode(before_word + _tidy(word))

    line_end = encode("\n")

    def line(text: str) -> bytes:
        begin, *rest = text.split(" ")
        return b"".join([first(begin), *map(later, rest)])

    def by_words(text: str) -> bytes:
        try:
            return line_end.join(map(line, text.split("\n")))
        except _Untidy:
            return encode(text)

    return by_words


def _tidy(word: str) -> str:
    if not word or word[0].isspace() or word[-1].isspace():
        raise _Untidy
    return word
