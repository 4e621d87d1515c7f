"""Token ids of texts, word by word: most words have been met before, and are looked up."""

from collections.abc import Callable

import numpy as np

from repro.corpus.tokenizer import LocalTokenizer

_MOST_WORDS = 1 << 19
"""Whose ids are kept before all are forgotten: about 100 MB."""


class _Untidy(Exception):
    """White space other than one blank or line end between two words."""


class _Words(dict[str, bytes]):
    """Ids of words, worked out when a word is first asked for."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        if not word or word[0].isspace() or word[-1].isspace():
            raise _Untidy
        if len(self) == _MOST_WORDS:
            self.clear()
        ids = self[word] = self._encode(word)
        return ids


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

    first = _Words(encode)
    later = _Words(lambda word: encode(before_word + word)) if before_word else first
    line_end = encode("\n")

    def line(text: str) -> bytes:
        begin, *rest = text.split(" ")
        return b"".join([first[begin], *map(later.__getitem__, rest)])

    def by_words(text: str) -> bytes:
        try:
            return line_end.join(map(line, text.split("\n")))
        except _Untidy:
            return encode(text)

    return by_words
