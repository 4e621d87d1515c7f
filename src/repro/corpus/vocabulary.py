"""Training of each family's tokenizer on the corpus."""

import hashlib
import string
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from repro.atomic import replace_text
from repro.catalog.models.papers import Family
from repro.corpus.records import read_articles, size_of
from repro.corpus.tokenizer import END_OF_TEXT, SENTINELS, WORDPIECE_SPECIALS
from repro.errors import ReproError

LARGEST_SAMPLE_BYTES = 1 << 30
"""Size of the articles that are used: enough for the most frequent tokens, minutes of training."""

_CONTINUATION = "##"
# Limit of the library for BERT; in small vocabularies a fraction 1/8, to leave tokens for words.
_LARGEST_ALPHABET = 1000
_ALPHABET_SHARE = 8


@dataclass(frozen=True)
class TrainedTokenizer:
    """Result of training or importing a tokenizer.

    Attributes
    ----------
    vocabulary_size
        Number of tokens, including special tokens.
    sha256
        Digest of the file.
    """

    vocabulary_size: int
    sha256: str


def train_tokenizer(
    family: Family, articles: Path, tokenizer: Path, *, vocabulary_size: int
) -> TrainedTokenizer:
    """Train a family's tokenizer on the corpus; the same corpus gives the same bytes.

    GPT gets byte-level BPE, which is lossless. BERT and T5 get lower-case WordPiece, because
    Megatron's masking finds words by the `##` prefix. If the corpus is larger than
    `LARGEST_SAMPLE_BYTES`, only every n-th article is read, with n = 1 + size // limit.

    Parameters
    ----------
    family
        The model family.
    articles
        The corpus, as `extract_articles` writes it.
    tokenizer
        The JSON file to write, in the format of the `tokenizers` library.
    vocabulary_size
        Number of tokens, including special tokens.

    Returns
    -------
    TrainedTokenizer
        Its size and digest.

    Raises
    ------
    ReproError
        The corpus is missing, or too small for the vocabulary.
    """
    train = _train_bpe if family == "gpt" else _train_wordpiece
    trained = train(family, articles, vocabulary_size)
    size = trained.get_vocab_size()
    if size != vocabulary_size:
        raise ReproError(
            f"{articles}: gives only {size} tokens for {family}, not {vocabulary_size}; fix: lower "
            f"vocabulary_sizes.{family} in params/corpus.yaml, or use a larger dump"
        )
    return write_tokenizer(trained, tokenizer)


def write_tokenizer(tokenizer: Tokenizer, path: Path) -> TrainedTokenizer:
    """Write a tokenizer as JSON, atomically."""
    replace_text(path, tokenizer.to_str(pretty=True))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return TrainedTokenizer(tokenizer.get_vocab_size(), digest)


def _train_bpe(family: Family, articles: Path, vocabulary_size: int) -> Tokenizer:
    tokenizer = byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(articles, f"{family} merges"), trainer)
    return tokenizer


def _train_wordpiece(family: Family, articles: Path, vocabulary_size: int) -> Tokenizer:
    specials = list(WORDPIECE_SPECIALS + (SENTINELS if family == "t5" else ()))
    learner = wordpiece(models.WordPiece(unk_token="[UNK]"))
    alphabet = _alphabet(articles, learner, family, vocabulary_size)
    # The library breaks ties between merges by token ids, and numbers `##x` in the order of a
    # randomly seeded hash map, so two runs would differ. Passed as special tokens, the `##x` get
    # fixed ids; they are special only for this learner.
    pieces = [_CONTINUATION + character for character in alphabet if _can_continue(character)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        special_tokens=specials + pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_CONTINUATION,
        show_progress=False,
    )
    learner.train_from_iterator(_texts(articles, f"{family} pieces"), trainer)
    vocabulary = learner.get_vocab()
    tokenizer = wordpiece(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(specials)
    return tokenizer


def byte_level(model: models.BPE) -> Tokenizer:
    """Return GPT-2's tokenizer with a BPE vocabulary, without special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def wordpiece(model: models.WordPiece, *, lowercase: bool = True) -> Tokenizer:
    """Return BERT's tokenizer with a WordPiece vocabulary, without special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUATION, cleanup=False)
    return tokenizer


def _alphabet(
    articles: Path, tokenizer: Tokenizer, family: Family, vocabulary_size: int
) -> list[str]:
    """Return the most frequent characters; the library would break ties at random."""
    counts: Counter[str] = Counter()
    for text in _texts(articles, f"{family} alphabet"):
        counts.update(tokenizer.normalizer.normalize_str(text))
    characters = sorted(
        (character for character in counts if not character.isspace()),
        key=lambda character: (-counts[character], character),
    )
    limit = min(_LARGEST_ALPHABET, vocabulary_size // _ALPHABET_SHARE)
    return sorted(characters[:limit])


def _can_continue(character: str) -> bool:
    # The pre-tokenizer makes each punctuation character a separate word.
    return character not in string.punctuation and unicodedata.category(character)[0] != "P"


def _texts(articles: Path, label: str) -> Iterator[str]:
    step = 1 + size_of(articles) // LARGEST_SAMPLE_BYTES
    return (article.text for article in islice(read_articles(articles, label), 0, None, step))
