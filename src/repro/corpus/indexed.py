"""The corpus as token ids, in Megatron's indexed format (.bin and .idx)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

from repro.atomic import replacing
from repro.catalog.models import Family
from repro.corpus.records import read_articles
from repro.corpus.sentences import split_sentences
from repro.corpus.tokenizer import LocalTokenizer

_BATCH_ARTICLES = 64
_CONTINUATION = "##"

LONGEST_SENTENCE = 512
"""Tokens; `LONG_SENTENCE_LEN` in Megatron's helpers.cpp, which passes over a whole document that
has a longer sentence. Small vocabularies make long sentences."""


@dataclass(frozen=True)
class IndexedCorpus:
    """What was written.

    Attributes
    ----------
    documents
        Number of articles.
    sequences
        Number of sequences: documents for gpt, sentences for bert and t5.
    tokens
        Number of tokens.
    size_bytes
        Size of the .bin file.
    """

    documents: int
    sequences: int
    tokens: int
    size_bytes: int


def write_indexed(family: Family, articles: Path, tokenizer: Path, prefix: Path) -> IndexedCorpus:
    """Tokenize the corpus into `prefix`.bin and `prefix`.idx.

    A document is one sequence for GPT, closed by the end-of-document token, and one sequence a
    sentence for BERT and T5, whose samples are made of whole sentences. The builder keeps the
    length of every sequence in memory: about 70 bytes each.

    Parameters
    ----------
    family
        Which layout.
    articles
        The corpus, as `extract_articles` writes it.
    tokenizer
        The family's tokenizer, as `train_tokenizer` writes it.
    prefix
        Path of both files without their suffix.

    Returns
    -------
    IndexedCorpus
        What was written.

    Raises
    ------
    ReproError
        The corpus or the tokenizer is missing or damaged.
    """
    local = LocalTokenizer(tokenizer)
    encode = _whole_documents if family == "gpt" else _sentences
    bin_path = prefix.with_name(prefix.name + ".bin")
    idx_path = prefix.with_name(prefix.name + ".idx")
    documents = tokens = 0
    # The inner block ends first: .bin is in place before the .idx that describes it.
    with replacing(idx_path) as new_idx, replacing(bin_path) as new_bin:
        builder = IndexedDatasetBuilder(str(new_bin), dtype=DType.optimal_dtype(local.vocab_size))
        texts = (article.text for article in read_articles(articles, f"{family} tokens"))
        while batch := list(islice(texts, _BATCH_ARTICLES)):
            for sequences in encode(local, batch):
                document = [token for sequence in sequences for token in sequence]
                builder.add_document(document, [len(sequence) for sequence in sequences])
                documents += 1
                tokens += len(document)
        builder.finalize(str(new_idx))
        size = new_bin.stat().st_size
        # A crash between the two renames must not leave the new .bin under the old .idx.
        idx_path.unlink(missing_ok=True)
    return IndexedCorpus(documents, len(builder.sequence_lengths), tokens, size)


def _whole_documents(tokenizer: LocalTokenizer, texts: list[str]) -> Iterator[list[list[int]]]:
    for ids in tokenizer.tokenize_batch(texts):
        yield [[*ids, tokenizer.eod]]


def _sentences(tokenizer: LocalTokenizer, texts: list[str]) -> Iterator[list[list[int]]]:
    documents = [split_sentences(text) for text in texts]
    encoded = iter(tokenizer.tokenize_batch([s for document in documents for s in document]))
    for document in documents:
        yield [
            piece
            for ids in islice(encoded, len(document))
            if ids
            for piece in _cut_long(ids, tokenizer.inv_vocab)
        ]


def _cut_long(ids: list[int], inv_vocab: dict[int, str]) -> Iterator[list[int]]:
    """Cut a sentence that Megatron would refuse, between words where there are words."""
    start = 0
    while len(ids) - start > LONGEST_SENTENCE:
        end = start + LONGEST_SENTENCE
        while end > start and inv_vocab[ids[end]].startswith(_CONTINUATION):
            end -= 1
        end = end if end > start else start + LONGEST_SENTENCE
        yield ids[start:end]
        start = end
    yield ids[start:]
