"""Extract plain articles from a Wikipedia dump, in shards that survive an interruption."""

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
    ALL,
    Share,
    Tally,
    join,
    remove_shards,
    run_shards,
    shard_folder,
    total,
)
from repro.corpus.streams import Damaged, decompress, stream_groups
from repro.errors import ReproError
from repro.observe.environment import sources_digest

SHARD_BYTES = 2 << 20
"""Compressed, of a dump of many streams; some eight million characters."""

_XML_PER_COMPRESSED = 4
_ROOT, _END = b"<mediawiki", b"</mediawiki>"
# Reasons that are worth a line of their own: the page is an article, and is lost.
_NAMED = ("invalid XML", "too large", "unreadable markup")

Streams = tuple[int, int]
"""First byte of a group of streams, and of the next one."""


def extract_articles(
    dump: Path,
    articles: Path,
    manifest: Path,
    *,
    min_article_characters: int,
    workers: int,
    share: Share = ALL,
    shard_bytes: int = SHARD_BYTES,
) -> bool:
    """Write the plain text of every article of a dump, one JSON object a line.

    The lines are in the dump's order and the same whatever the number of workers and jobs. Finished
    shards wait beside `articles`; an extraction that was killed, run again with the same dump and
    parameters, does only what is missing. A dump of many streams is decompressed by the workers,
    one of a single stream here.

    Parameters
    ----------
    dump
        A `*-pages-articles.xml.bz2`.
    articles
        The file to write; it appears only when it is complete.
    manifest
        The file of counts to write.
    min_article_characters
        Shortest article that is kept, in characters of plain text.
    workers
        Number of processes.
    share
        The part of the work to do here.
    shard_bytes
        Compressed size of a shard. Where streams are longer, so are shards.

    Returns
    -------
    bool
        Whether all is done; False where this is one share of several.

    Raises
    ------
    ReproError
        The dump is missing, damaged or without articles, or a worker died.
    """
    if not dump.is_file():
        raise ReproError(f"{dump}: no such file; make it with `repro corpus dump`")
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
        parts = run_shards(
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
            f"{dump}: damaged or no Wikipedia dump ({error}; it has {status.st_size} bytes); "
            f"delete it and run `repro corpus dump` again"
        ) from None
    if parts is None:
        return False
    tally = total(parts)
    if not tally.counts["articles"]:
        raise ReproError(
            f"{dump}: no article of at least {min_article_characters} characters in it; lower "
            f"min_article_characters in params/corpus.yaml, or set `dump` to another file"
        )
    join(parts, ".jsonl", articles)
    write_manifest(manifest, tally.counts, tally.named)
    remove_shards(articles)
    return True


def _blocks(dump: Path, shard_bytes: int) -> Iterator[tuple[list[bytes], int]]:
    """Cut the pages of a single stream into blocks, and say where in the stream they end."""
    size = dump.stat().st_size
    block: list[bytes] = []
    block_bytes = 0
    with dump.open("rb") as file:
        for cut in _cuts(file, 0, size, size):
            block.append(cut)
            block_bytes += len(cut)
            if block_bytes >= _XML_PER_COMPRESSED * shard_bytes:
                yield block, file.tell()
                block, block_bytes = [], 0
        yield block, size


def _cuts(file: BinaryIO, start: int, end: int, size: int) -> Iterator[bytes]:
    """Cut streams into pages, at the file's ends making sure that it is a dump, and a whole one."""
    pieces = decompress(file, start, end)
    if not start:
        pieces = _from_root(pieces)
    rest = yield from cut_pages(pieces, decompress(file, end, size))
    if end == size and _END not in rest:
        raise Damaged("the XML ends inside a page or before </mediawiki>")


def _from_root(pieces: Iterator[bytes]) -> Iterator[bytes]:
    first = next(pieces, b"")
    if _ROOT not in first:
        # A corrupt block comes out before its checksum is compared: that would be the reason.
        next(pieces, b"")
        raise Damaged("no <mediawiki> at its beginning")
    yield first
    yield from pieces


def _extract(dump: Path, min_characters: int, item: Streams | list[bytes], part: Path) -> Tally:
    if isinstance(item, list):
        return _write(item, min_characters, part)
    start, end = item
    with dump.open("rb") as file:
        cuts = _cuts(file, start, end, dump.stat().st_size)
        # A shard may begin with the end of a page, which the shard before has.
        owned = (cut for n, cut in enumerate(cuts) if n or not start or begins_page(cut))
        return _write(owned, min_characters, part)


def _write(cuts: Iterable[bytes], min_characters: int, part: Path) -> Tally:
    counts: Counter[str] = Counter()
    named: list[str] = []
    target = part.with_name(part.name + ".jsonl")
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
                    if dropped.reason in _NAMED:
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
