"""The corpus as token ids, in Megatron's indexed format (.bin and .idx)."""

import os
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.indexed_dataset import _INDEX_HEADER, DType

from repro.atomic import replacing
from repro.catalog.models import Family
from repro.corpus.manifest import length_class, write_manifest
from repro.corpus.records import articles_between, size_of
from repro.corpus.sentences import split_sentences
from repro.corpus.shards import (
    ALL,
    Share,
    Tally,
    join,
    remove_shards,
    run_shards,
    shard_folder,
    total,
)
from repro.corpus.tokenizer import LocalTokenizer

SHARD_BYTES = 4 << 20
"""Of the file of articles."""

_BATCH_ARTICLES = 64
_CONTINUATION = "##"
_VERSION = 1

LONGEST_SENTENCE = 512
"""Tokens; `LONG_SENTENCE_LEN` in Megatron's helpers.cpp, which passes over a whole document that
has a longer sentence. Small vocabularies make long sentences."""


def write_indexed(
    family: Family,
    articles: Path,
    tokenizer: Path,
    prefix: Path,
    manifest: Path,
    *,
    workers: int,
    share: Share = ALL,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Tokenize the corpus into `prefix`.bin and `prefix`.idx.

    A document is one sequence for GPT, closed by the end-of-document token, and one sequence a
    sentence for BERT and T5, whose samples are made of whole sentences. The bytes are those of
    Megatron's builder, whatever the number of workers and jobs; unlike it, this keeps no length in
    memory. Finished shards wait beside `prefix`, and only what is missing is done.

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
    manifest
        The file of counts to write.
    workers
        Number of processes.
    share
        The part of the work to do here.
    shard_bytes
        Bytes of articles in a shard.

    Returns
    -------
    bool
        Whether all is done; False while other shares are not.

    Raises
    ------
    ReproError
        The corpus or the tokenizer is missing or damaged, or a worker died.
    """
    size = size_of(articles)
    local = LocalTokenizer(tokenizer)

    identity: dict[str, str | int] = {
        "articles": str(articles.resolve()),
        "articles_bytes": size,
        "articles_mtime_ns": articles.stat().st_mtime_ns,
        "tokenizer": local.sha256,
        "family": family,
        "shard_bytes": shard_bytes,
        "tokenizers": version("tokenizers"),
    }
    bounds = range(0, size, shard_bytes)
    parts = run_shards(
        partial(_encode, family, articles, tokenizer),
        (((start, start + shard_bytes), min(start + shard_bytes, size)) for start in bounds),
        shard_folder(prefix, identity),
        workers=workers,
        share=share,
        total_bytes=size,
        label=f"{family} tokens",
    )
    if parts is None:
        return False
    tally = total(parts)
    index = parts[0].with_name("joined.idx")
    _write_index(index, parts, tally.counts, DType.optimal_dtype(local.vocab_size))
    # A crash between the two renames must not leave the new .bin under the old .idx.
    _file(prefix, ".idx").unlink(missing_ok=True)
    join(parts, ".bin", _file(prefix, ".bin"))
    os.replace(index, _file(prefix, ".idx"))
    write_manifest(manifest, tally.counts, tally.named)
    remove_shards(prefix)
    return True


@cache
def _tokenizer(path: Path) -> LocalTokenizer:
    # Every core has a process of its own, which needs no threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return LocalTokenizer(path)


def _encode(
    family: Family, articles: Path, tokenizer: Path, bounds: tuple[int, int], part: Path
) -> Tally:
    """Make a shard: its tokens, the length of every sequence, the sequences of every document."""
    local = _tokenizer(tokenizer)
    dtype = DType.optimal_dtype(local.vocab_size)
    encode = _whole_documents if family == "gpt" else _sentences
    counts: Counter[str] = Counter()
    lengths: list[int] = []
    sequences: list[int] = []
    texts = (article.text for article in articles_between(articles, *bounds))
    with replacing(_file(part, ".bin")) as temporary, temporary.open("wb") as file:
        while batch := list(islice(texts, _BATCH_ARTICLES)):
            for document in encode(local, batch):
                tokens = [token for sequence in document for token in sequence]
                file.write(np.array(tokens, dtype=dtype).tobytes())
                lengths += map(len, document)
                sequences.append(len(document))
                counts[f"documents_of_tokens.{length_class(len(tokens))}"] += 1
        counts["bin_bytes"] = file.tell()
    _save(part, ".lengths", np.array(lengths, dtype=np.int32))
    _save(part, ".sequences", np.array(sequences, dtype=np.int64))
    counts.update(documents=len(sequences), sequences=len(lengths), tokens=sum(lengths))
    return Tally(counts, [])


def _file(part: Path, suffix: str) -> Path:
    return part.with_name(part.name + suffix)


def _save(part: Path, suffix: str, array: np.ndarray[Any, Any]) -> None:
    with replacing(_file(part, suffix)) as temporary:
        array.tofile(temporary)


def _write_index(path: Path, parts: Sequence[Path], counts: Counter[str], dtype: Any) -> None:
    """Write the .idx as Megatron's `_IndexWriter` does, but one shard at a time.

    Its own makes Python lists of all lengths and positions: 12 GB for the full Wikipedia.
    """
    lengths = [_file(part, ".lengths") for part in parts]
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_INDEX_HEADER)
        code, documents = DType.code_from_dtype(dtype), counts["documents"] + 1
        file.write(struct.pack("<QBQQ", _VERSION, code, counts["sequences"], documents))
        for length in lengths:
            file.write(length.read_bytes())
        end = np.int64(0)
        for length in lengths:
            sizes = np.fromfile(length, np.int32).astype(np.int64) * DType.size(dtype)
            file.write((end + np.cumsum(sizes) - sizes).tobytes())
            end += sizes.sum()
        end = np.int64(0)
        file.write(end.tobytes())
        for part in parts:
            sequences = np.fromfile(_file(part, ".sequences"), np.int64)
            file.write((end + np.cumsum(sequences)).tobytes())
            end += sequences.sum()


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
