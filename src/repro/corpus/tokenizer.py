"""Tokenizer file with the interface that `megatron.core.datasets` expects."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers

from repro.errors import ReproError, one_line

# A file without a token for unknown characters is refused where it is read, not at some text.
_IN_NO_VOCABULARY = "\U0010ffff"

END_OF_TEXT = "<|endoftext|>"
"""GPT's only special token."""

WORDPIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[BOS]", "[EOS]")
"""Special tokens of BERT and T5. [PAD] must be first: Megatron's BERT pads masks and segment ids
with the padding's id, and only 0 means "no" in both."""

SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))
"""T5's tokens that replace masked spans."""


class LocalTokenizer:
    """Megatron's tokenizer interface to a file in the format of the `tokenizers` library.

    `cls`, `sep`, `mask`, `pad`, `bos` and `eos` are the ids of BERT's and T5's special tokens. GPT
    has none of them and raises AttributeError, which Megatron catches.

    Parameters
    ----------
    path
        A file that `train_tokenizer` or `import_tokenizer` wrote.

    Attributes
    ----------
    path
        The file.
    sha256
        Digest of the file.
    vocab_size
        Number of tokens, special ones included.
    inv_vocab
        Token of each id, in the order of ids.
    eod
        Id of the token that ends a document.
    additional_special_tokens_ids
        Ids of T5's sentinels in order; empty for the others.
    before_word
        Prefix of a word that follows another word, if words can be encoded alone: a blank for
        GPT, empty for BERT. None if they cannot.
    unique_identifiers
        Mapping that Megatron hashes into its cache names: the content, not the path.

    Raises
    ------
    ReproError
        The file is missing, not a tokenizer, or lacks the token that ends a document.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ReproError(f"{path}: no such file; fix: run `repro corpus tokenizer {path.stem}`")
        fix = f"fix: run `repro corpus tokenizer {path.stem}`"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            self._tokenizer.encode(_IN_NO_VOCABULARY)
        except Exception as error:  # the library raises nothing narrower
            raise ReproError(f"{path}: not a tokenizer ({one_line(error)}); {fix}") from None
        # "<|endoftext|>" in an article is text, not the end of the document.
        self._tokenizer.encode_special_tokens = True
        self.path = path
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        vocabulary = self._tokenizer.get_vocab()
        self._ids = {
            name.strip("[]").lower(): vocabulary[name]
            for name in WORDPIECE_SPECIALS
            if name in vocabulary
        }
        self.vocab_size: int = len(vocabulary)
        self.inv_vocab = {
            number: token for token, number in sorted(vocabulary.items(), key=itemgetter(1))
        }
        end = END_OF_TEXT if END_OF_TEXT in vocabulary else "[EOS]"
        if end not in vocabulary:
            raise ReproError(f"{path}: has neither {END_OF_TEXT} nor {end}; {fix}")
        self.eod: int = vocabulary[end]
        self.additional_special_tokens_ids = [
            vocabulary[name] for name in SENTINELS if name in vocabulary
        ]
        self.before_word = _before_word(self._tokenizer)
        self.unique_identifiers = OrderedDict({"class": type(self).__name__, "sha256": self.sha256})

    def __getattr__(self, name: str) -> int:
        """Return the id of a special token, such as `cls`."""
        ids: dict[str, int] = self.__dict__.get("_ids", {})
        if name in ids:
            return ids[name]
        raise AttributeError(f"{type(self).__name__} of {self.__dict__.get('path')} has no {name}")

    def __reduce__(self) -> tuple[type["LocalTokenizer"], tuple[Path]]:
        """Pickle the path only; the file is read again when unpickled."""
        return type(self), (self.path,)

    def tokenize(self, text: str) -> list[int]:
        """Encode one text; return its token ids, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokenize_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts on all cores; return each one's ids, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def _before_word(tokenizer: Tokenizer) -> str | None:
    match tokenizer.normalizer, tokenizer.pre_tokenizer:
        case None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True):
            return " "
        case normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer():
            return ""
        case _:
            return None
