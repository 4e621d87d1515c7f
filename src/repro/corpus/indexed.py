"""Tokenized corpus in Megatron's indexed format (.bin and .idx)."""

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
    ALL_SHARDS,
    Share,
    Tally,
    concatenate,
    remove_shards,
    run_shards,
    shard_folder,
    sum_tallies,
)
from repro.corpus.tokenizer import LocalTokenizer
from repro.corpus.word_cache import text_encoder
from repro.errors import ReproError, of_file
from repro.observe.environment import sources_digest

SHARD_BYTES = 4 << 20
"""Bytes of articles in a shard."""

_CONTINUATION = "##"
# Constants of megatron.core.datasets.indexed_dataset, which is not imported because that takes
# longer than writing a small corpus: an index's first bytes, its version, the codes of types, and
# the vocabulary size from which ids are int32.
_INDEX_HEADER = b"MMIDIDX\x00\x00"
_VERSION = 1
# Version, type of tokens, and numbers of sequences and documents.
_COUNTS = "<QBQQ"
_TYPES: dict[type[np.integer[Any]], int] = {np.uint16: 8, np.int32: 4}
_INT32_VOCABULARY = 65_500

LONGEST_SENTENCE = 512
"""Maximum tokens per sentence: `LONG_SENTENCE_LEN` in Megatron's helpers.cpp, which skips documents
with a longer sentence. Small vocabularies make long sentences."""


def write_indexed(
    family: Family,
    articles: Path,
    tokenizer: Path,
    prefix: Path,
    manifest: Path,
    *,
    workers: int,
    share: Share = ALL_SHARDS,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Tokenize the corpus into `prefix`.bin and `prefix`.idx.

    For GPT a document is one sequence with the end-of-document token. For BERT and T5, whose
    samples consist of sentences, it is one sequence per sentence. The bytes equal those of
    Megatron's builder for any number of workers and jobs; unlike it, this function keeps no
    lengths in memory. Finished shards are kept in a folder next to `prefix`; a killed run resumes.

    Parameters
    ----------
    family
        The model family.
    articles
        The corpus, as `extract_articles` writes it.
    tokenizer
        The family's tokenizer, as `train_tokenizer` writes it.
    prefix
        Path of both files without suffix.
    manifest
        The file of counts to write.
    workers
        Number of processes.
    share
        The shards to do in this job.
    shard_bytes
        Bytes of articles in a shard.

    Returns
    -------
    bool
        Whether both files are written; False if this is one share of several.

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
    shards = run_shards(
        partial(_encode, family, articles, tokenizer),
        (((start, start + shard_bytes), min(start + shard_bytes, size)) for start in bounds),
        shard_folder(prefix, identity),
        workers=workers,
        share=share,
        total_bytes=size,
        label=f"{family} tokens",
    )
    if shards is None:
        return False
    tally = sum_tallies(shards)
    index = shards[0].with_name("joined.idx")
    _write_index(index, shards, tally.counts, _token_type(local))
    # A crash between the two renames must not leave the new .bin with the old .idx.
    _file(prefix, ".idx").unlink(missing_ok=True)
    concatenate(shards, ".bin", _file(prefix, ".bin"))
    os.replace(index, _file(prefix, ".idx"))
    write_manifest(manifest, tally.counts, tally.named)
    remove_shards(prefix)
    return True


def _token_type(tokenizer: LocalTokenizer) -> type[np.integer[Any]]:
    return np.uint16 if tokenizer.vocab_size < _INT32_VOCABULARY else np.int32


@cache
def _encoder(family: Family, tokenizer: Path) -> tuple[Callable[[str], list[bytes]], int]:
    """Return the function that encodes a document's sequences, and the bytes per token.

    The function is cached, so that its cache of words is used for the next shard.
    """
    # The workers use all cores, so the library must not start threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    local = LocalTokenizer(tokenizer)
    dtype = _token_type(local)
    token_bytes = np.dtype(dtype).itemsize
    encode = text_encoder(local, dtype)
    end = np.array([local.eod], dtype).tobytes()

    def encode_document(text: str) -> list[bytes]:
        return [encode(text) + end]

    def encode_sentences(text: str) -> list[bytes]:
        sequences: list[bytes] = []
        for ids in map(encode, split_sentences(text)):
            if len(ids) > LONGEST_SENTENCE * token_bytes:
                sequences += _cut_long(np.frombuffer(ids, dtype), local.inv_vocab)
            elif ids:
                sequences.append(ids)
        return sequences

    return encode_document if family == "gpt" else encode_sentences, token_bytes


def _encode(
    family: Family, articles: Path, tokenizer: Path, bounds: tuple[int, int], shard: Path
) -> Tally:
    """Make a shard: its tokens, the length of each sequence, the sequences of each document."""
    encode, token_bytes = _encoder(family, tokenizer)
    counts: Counter[str] = Counter()
    lengths: list[int] = []
    sequences: list[int] = []
    with replacing(_file(shard, ".bin")) as temporary, temporary.open("wb") as file:
        for article in articles_between(articles, *bounds):
            document = encode(article.text)
            file.writelines(document)
            tokens = [len(sequence) // token_bytes for sequence in document]
            lengths += tokens
            sequences.append(len(tokens))
            counts[f"documents_of_tokens.{length_class(sum(tokens))}"] += 1
        counts["bin_bytes"] = file.tell()
    _save(shard, ".lengths", np.array(lengths, dtype=np.int32))
    _save(shard, ".sequences", np.array(sequences, dtype=np.int64))
    counts.update(documents=len(sequences), sequences=len(lengths), tokens=sum(lengths))
    return Tally(counts, [])


def _file(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def _save(shard: Path, suffix: str, array: np.ndarray[Any, Any]) -> None:
    with replacing(_file(shard, suffix)) as temporary:
        array.tofile(temporary)


def _write_index(
    path: Path, shards: Sequence[Path], counts: Counter[str], dtype: type[np.integer[Any]]
) -> None:
    """Write the .idx as Megatron's `_IndexWriter` does, but one shard at a time.

    Megatron makes Python lists of all lengths and positions: 12 GB for the full Wikipedia.
    """
    lengths = [_file(shard, ".lengths") for shard in shards]
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_INDEX_HEADER)
        documents = counts["documents"] + 1
        file.write(struct.pack(_COUNTS, _VERSION, _TYPES[dtype], counts["sequences"], documents))
        for length in lengths:
            file.write(length.read_bytes())
        end = np.int64(0)
        for length in lengths:
            sizes = np.fromfile(length, np.int32).astype(np.int64) * np.dtype(dtype).itemsize
            file.write((end + np.cumsum(sizes) - sizes).tobytes())
            end += sizes.sum()
        end = np.int64(0)
        file.write(end.tobytes())
        for shard in shards:
            sequences = np.fromfile(_file(shard, ".sequences"), np.int64)
            file.write((end + np.cumsum(sequences)).tobytes())
            end += sequences.sum()


def check_indexed(prefix: Path) -> None:
    """Refuse files that were truncated or changed: Megatron's reader would read beyond them.

    Raises
    ------
    ReproError
        The index is damaged, or does not fit the tokens; the message says where.
    """
    index, tokens = _file(prefix, ".idx"), _file(prefix, ".bin")
    with of_file(index, "run `repro corpus dataset` again"):
        content = np.memmap(index, np.uint8, "r") if index.stat().st_size else np.zeros(0, np.uint8)
        head = len(_INDEX_HEADER) + struct.calcsize(_COUNTS)
        if len(content) < head or content[: len(_INDEX_HEADER)].tobytes() != _INDEX_HEADER:
            raise ReproError(f"no index of Megatron's in {len(content)} bytes")
        counts = struct.unpack(_COUNTS, content[len(_INDEX_HEADER) : head].tobytes())
        version, code, sequences, documents = counts
        sizes = {_TYPES[dtype]: np.dtype(dtype).itemsize for dtype in _TYPES}
        if version != _VERSION or code not in sizes:
            raise ReproError(f"version {version} with type {code} of tokens; supported: 1, 4 or 8")
        if len(content) != head + 12 * sequences + 8 * documents or not documents:
            raise ReproError(
                f"{len(content)} bytes are not those of {sequences} sequences and "
                f"{documents} documents"
            )
        lengths, starts, ends = (
            np.frombuffer(content, dtype, count, offset)
            for dtype, count, offset in (
                ("<i4", sequences, head),
                ("<i8", sequences, head + 4 * sequences),
                ("<i8", documents, head + 12 * sequences),
            )
        )
        bounds = np.append(0, np.cumsum(lengths.astype(np.int64) * sizes[code]))
        if (lengths < 0).any() or (starts != bounds[:-1]).any():
            raise ReproError("its sequences do not follow one another")
        if ends[0] or ends[-1] != sequences or (np.diff(ends) < 0).any():
            raise ReproError("its documents do not follow one another")
        if tokens.stat().st_size != bounds[-1]:
            raise ReproError(f"{tokens.name} has {tokens.stat().st_size} bytes, not {bounds[-1]}")


def _cut_long(tokens: np.ndarray[Any, Any], inv_vocab: dict[int, str]) -> Iterator[bytes]:
    """Cut a sentence longer than `LONGEST_SENTENCE`, between words if possible."""
    start = 0
    while len(tokens) - start > LONGEST_SENTENCE:
        end = start + LONGEST_SENTENCE
        while end > start and inv_vocab[int(tokens[end])].startswith(_CONTINUATION):
            end -= 1
        end = end if end > start else start + LONGEST_SENTENCE
        yield tokens[start:end].tobytes()
        start = end
    yield tokens[start:].tobytes()
