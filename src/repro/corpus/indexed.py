"""The corpus as token ids, in Megatron's indexed format (.bin and .idx)."""

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from repro.atomic import replacing
from repro.catalog.models.papers import Family
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
from repro.corpus.word_cache import text_encoder
from repro.observe.environment import sources_digest

SHARD_BYTES = 4 << 20
"""Of the file of articles."""

_CONTINUATION = "##"
# As in megatron.core.datasets.indexed_dataset, which takes longer to load than a small corpus to
# write: an index's first bytes, its version, and the numbers of types. Vocabularies of fewer words
# have the small one.
_INDEX_HEADER = b"MMIDIDX\x00\x00"
_VERSION = 1
_TYPES: dict[type[np.integer[Any]], int] = {np.uint16: 8, np.int32: 4}
_FEW_WORDS = 65_500

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
        Whether all is done; False where this is one share of several.

    Raises
    ------
    ReproError
        The corpus or the tokenizer is missing or damaged, or a worker died.
    """
    size = size_of(articles)
    local = LocalTokenizer(tokenizer)

    identity: dict[str, str | int] = {
        "sources": sources_digest(),
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
    _write_index(index, parts, tally.counts, _token_type(local))
    # A crash between the two renames must not leave the new .bin under the old .idx.
    _file(prefix, ".idx").unlink(missing_ok=True)
    join(parts, ".bin", _file(prefix, ".bin"))
    os.replace(index, _file(prefix, ".idx"))
    write_manifest(manifest, tally.counts, tally.named)
    remove_shards(prefix)
    return True


def _token_type(tokenizer: LocalTokenizer) -> type[np.integer[Any]]:
    return np.uint16 if tokenizer.vocab_size < _FEW_WORDS else np.int32


@cache
def _encoder(family: Family, tokenizer: Path) -> tuple[Callable[[str], list[bytes]], int]:
    """What makes a document's sequences of its text, and the bytes of a token.

    It is kept, for words that one shard has met are then known to the next.
    """
    # Every core has a process of its own, which needs no threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    local = LocalTokenizer(tokenizer)
    dtype = _token_type(local)
    token_bytes = np.dtype(dtype).itemsize
    encode = text_encoder(local, dtype)
    end = np.array([local.eod], dtype).tobytes()

    def whole(text: str) -> list[bytes]:
        return [encode(text) + end]

    def sentences(text: str) -> list[bytes]:
        pieces: list[bytes] = []
        for ids in map(encode, split_sentences(text)):
            if len(ids) > LONGEST_SENTENCE * token_bytes:
                pieces += _cut_long(np.frombuffer(ids, dtype), local.inv_vocab)
            elif ids:
                pieces.append(ids)
        return pieces

    return whole if family == "gpt" else sentences, token_bytes


def _encode(
    family: Family, articles: Path, tokenizer: Path, bounds: tuple[int, int], part: Path
) -> Tally:
    """Make a shard: its tokens, the length of every sequence, the sequences of every document."""
    encode, token_bytes = _encoder(family, tokenizer)
    counts: Counter[str] = Counter()
    lengths: list[int] = []
    sequences: list[int] = []
    with replacing(_file(part, ".bin")) as temporary, temporary.open("wb") as file:
        for article in articles_between(articles, *bounds):
            document = encode(article.text)
            file.writelines(document)
            tokens = [len(sequence) // token_bytes for sequence in document]
            lengths += tokens
            sequences.append(len(tokens))
            counts[f"documents_of_tokens.{length_class(sum(tokens))}"] += 1
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


def _write_index(
    path: Path, parts: Sequence[Path], counts: Counter[str], dtype: type[np.integer[Any]]
) -> None:
    """Write the .idx as Megatron's `_IndexWriter` does, but one shard at a time.

    Its own makes Python lists of all lengths and positions: 12 GB for the full Wikipedia.
    """
    lengths = [_file(part, ".lengths") for part in parts]
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_INDEX_HEADER)
        documents = counts["documents"] + 1
        file.write(struct.pack("<QBQQ", _VERSION, _TYPES[dtype], counts["sequences"], documents))
        for length in lengths:
            file.write(length.read_bytes())
        end = np.int64(0)
        for length in lengths:
            sizes = np.fromfile(length, np.int32).astype(np.int64) * np.dtype(dtype).itemsize
            file.write((end + np.cumsum(sizes) - sizes).tobytes())
            end += sizes.sum()
        end = np.int64(0)
        file.write(end.tobytes())
        for part in parts:
            sequences = np.fromfile(_file(part, ".sequences"), np.int64)
            file.write((end + np.cumsum(sequences)).tobytes())
            end += sequences.sum()


def _cut_long(tokens: np.ndarray[Any, Any], inv_vocab: dict[int, str]) -> Iterator[bytes]:
    """Cut a sentence that Megatron would refuse, between words where there are words."""
    start = 0
    while len(tokens) - start > LONGEST_SENTENCE:
        end = start + LONGEST_SENTENCE
        while end > start and inv_vocab[int(tokens[end])].startswith(_CONTINUATION):
            end -= 1
        end = end if end > start else start + LONGEST_SENTENCE
        yield tokens[start:end].tobytes()
        start = end
    yield tokens[start:].tobytes()
