"""Extraction of plain articles from a Wikipedia dump, in resumable shards."""

import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from repro.atomic import replacing
from repro.corpus.manifest import length_class, write_manifest
from repro.corpus.markup.parsed import UnreadableMarkup
from repro.corpus.markup.plain import plain_text
from repro.corpus.pages import Dropped, Page, begins_page, cut_pages, read_pages
from repro.corpus.records import Article, to_line
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
from repro.corpus.streams import Damaged, decompress, stream_groups
from repro.errors import ReproError
from repro.observe.environment import sources_digest

SHARD_BYTES = 2 << 20
"""Compressed size of a shard of a multistream dump: about eight million characters."""

_XML_PER_COMPRESSED = 4
_ROOT, _END = b"<mediawiki", b"</mediawiki>"
# Pages dropped for these reasons are listed, because they are articles.
_LISTED_REASONS = ("invalid XML", "too large", "unreadable markup")

Streams = tuple[int, int]
"""First byte of a group of streams, and of the next group."""


def extract_articles(
    dump: Path,
    articles: Path,
    manifest: Path,
    *,
    min_article_characters: int,
    workers: int,
    share: Share = ALL_SHARDS,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Write the plain text of each article of a dump, one JSON object per line.

    The lines are in the dump's order and do not depend on the number of workers and jobs. Finished
    shards are kept in a folder next to `articles`. Run again with the same dump and parameters, a
    killed extraction does only the missing shards. The workers decompress a dump of many streams;
    this process decompresses a dump of one stream.

    Parameters
    ----------
    dump
        A `*-pages-articles.xml.bz2`.
    articles
        The file to write; it is complete or absent.
    manifest
        The file of counts to write.
    min_article_characters
        Minimum length of an article, in characters of plain text; shorter ones are dropped.
    workers
        Number of processes.
    share
        The shards to do in this job.
    shard_bytes
        Compressed size of a shard; a shard with a longer stream is larger.

    Returns
    -------
    bool
        Whether `articles` is written; False if this is one share of several.

    Raises
    ------
    ReproError
        The dump is missing, damaged or without articles, or a worker died.
    """
    if not dump.is_file():
        raise ReproError(f"{dump}: no such file; fix: run `repro corpus dump`")
    status = dump.stat()
    identity: dict[str, str | int] = {
        "sources": sources_digest(),
        "dump": str(dump.resolve()),
        "dump_bytes": status.st_size,
        "dump_mtime_ns": status.st_mtime_ns,
        "min_article_characters": min_article_characters,
        "shard_bytes": shard_bytes,
        "mwparserfromhell": importlib.metadata.version("mwparserfromhell"),
    }
    groups = stream_groups(dump, shard_bytes)
    try:
        shards = run_shards(
            partial(_extract, dump, min_article_characters),
            _blocks(dump, shard_bytes) if groups is None else ((g, g[1]) for g in groups),
            shard_folder(articles, identity),
            workers=workers,
            share=share,
            total_bytes=status.st_size,
            label="extract",
        )
    except Damaged as error:
        raise ReproError(
            f"{dump}: damaged or not a Wikipedia dump ({error}; it has {status.st_size} bytes); "
            f"fix: delete it and run `repro corpus dump` again"
        ) from None
    if shards is None:
        return False
    tally = sum_tallies(shards)
    if not tally.counts["articles"]:
        raise ReproError(
            f"{dump}: no article of at least {min_article_characters} characters; fix: lower "
            f"min_article_characters in params/corpus.yaml, or set `dump` to another file"
        )
    concatenate(shards, ".jsonl", articles)
    write_manifest(manifest, tally.counts, tally.named)
    remove_shards(articles)
    return True


def _blocks(dump: Path, shard_bytes: int) -> Iterator[tuple[list[bytes], int]]:
    """Group the pages of a single stream into blocks; yield each with the byte at which it ends."""
    size = dump.stat().st_size
    block: list[bytes] = []
    block_bytes = 0
    with dump.open("rb") as file:
        for cut in _cut_streams(file, 0, size, size):
            block.append(cut)
            block_bytes += len(cut)
            if block_bytes >= _XML_PER_COMPRESSED * shard_bytes:
                yield block, file.tell()
                block, block_bytes = [], 0
        yield block, size


def _cut_streams(file: BinaryIO, start: int, end: int, size: int) -> Iterator[bytes]:
    """Cut streams into pages; at the file's ends, check that it is a complete dump."""
    pieces = decompress(file, start, end)
    if not start:
        pieces = _from_root(pieces)
    rest = yield from cut_pages(pieces, decompress(file, end, size))
    if end == size and _END not in rest:
        raise Damaged("the XML ends inside a page or before </mediawiki>")


def _from_root(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    if _ROOT not in first:
        # A corrupt block is decompressed before its checksum fails: read on to report that first.
        next(pieces, b"")
        raise Damaged("no <mediawiki> at its beginning")
    yield first
    yield from pieces


def _extract(dump: Path, min_characters: int, item: Streams | list[bytes], shard: Path) -> Tally:
    if isinstance(item, list):
        return _write(item, min_characters, shard)
    start, end = item
    with dump.open("rb") as file:
        cuts = _cut_streams(file, start, end, dump.stat().st_size)
        # A shard may start with the end of a page that belongs to the preceding shard.
        owned = (cut for n, cut in enumerate(cuts) if n or not start or begins_page(cut))
        return _write(owned, min_characters, shard)


def _write(cuts: Iterable[bytes], min_characters: int, shard: Path) -> Tally:
    counts: Counter[str] = Counter()
    named: list[str] = []
    target = shard.with_name(shard.name + ".jsonl")
    with (
        replacing(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for cut in cuts:
            counts["xml_bytes"] += len(cut.lstrip())
            for page in read_pages(cut):
                counts["pages"] += 1
                try:
                    article = _article(page, min_characters)
                except Dropped as dropped:
                    counts[f"dropped.{dropped.reason}"] += 1
                    if dropped.reason in _LISTED_REASONS:
                        named.append(f"{dropped.reason}: {page.title}")
                    continue
                file.write(to_line(article))
                counts["articles"] += 1
                counts["characters"] += len(article.text)
                counts[f"articles_of_characters.{length_class(len(article.text))}"] += 1
    counts["article_bytes"] = target.stat().st_size
    return Tally(counts, named)


def _article(page: Page | Dropped, min_characters: int) -> Article:
    if isinstance(page, Dropped):
        raise page
    try:
        text = plain_text(page.markup)
    except UnreadableMarkup:
        raise Dropped("unreadable markup") from None
    if len(text) < min_characters:
        raise Dropped("too short")
    return Article(page.id, page.title, text)
