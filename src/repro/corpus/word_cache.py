"""Token ids of texts, with a cache of the ids of each distinct word."""

from collections.abc import Callable

import numpy as np

from repro.corpus.tokenizer import LocalTokenizer

_MAX_WORDS = 1 << 19
"""Words in the cache before it is cleared: about 100 MB."""


class _OtherWhitespace(Exception):
    """The text has white space other than one blank or line end between two words."""


class _WordCache(dict[str, bytes]):
    """Ids of words, encoded at first use."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> bytes:
        if not word or word[0].isspace() or word[-1].isspace():
            raise _OtherWhitespace
        if len(self) == _MAX_WORDS:
            self.clear()
        ids = self[word] = self._encode(word)
        return ids


def text_encoder(tokenizer: LocalTokenizer, dtype: type[np.generic]) -> Callable[[str], bytes]:
    """Return a function that encodes texts, several times as fast if words repeat.

    GPT-2's pre-tokenizer splits before a blank between two words and around a line end; BERT's
    splits at both. The ids of a part do not depend on other parts, so each word is encoded once.
    Texts with other white space, and texts for other pre-tokenizers, are encoded as a whole.

    Parameters
    ----------
    tokenizer
        Any tokenizer.
    dtype
        Type of the ids.

    Returns
    -------
    Callable
        Function from a text to the bytes of the ids that `tokenize_batch` returns.
    """

    def encode(text: str) -> bytes:
        return np.array(tokenizer.tokenize(text), dtype).tobytes()

    before_word = tokenizer.before_word
    if before_word is None:
        return encode

    first = _WordCache(encode)
    later = _WordCache(lambda word: encode(before_word + word)) if before_word else first
    line_end = encode("\n")

    def encode_line(text: str) -> bytes:
        begin, *rest = text.split(" ")
        return b"".join([first[begin], *map(later.__getitem__, rest)])

    def encode_by_words(text: str) -> bytes:
        try:
            return line_end.join(map(encode_line, text.split("\n")))
        except _OtherWhitespace:
            return encode(text)

    return encode_by_words
