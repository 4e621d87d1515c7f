"""Extract plain articles from a Wikipedia dump, in shards that survive an interruption."""

import importlib.metadata
import json
import shutil
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mwparserfromhell.parser import ParserError

from repro.atomic import replace_text, replacing
from repro.corpus.bounded import map_in_order, process_pool
from repro.corpus.pages import Page, iterate_pages
from repro.corpus.records import Article, to_line
from repro.corpus.wikitext import plain_text
from repro.errors import ReproError

_CHUNK_PAGES = 8
_CHUNKS_IN_FLIGHT_PER_WORKER = 4


@dataclass(frozen=True)
class Extraction:
    """What one extraction made.

    Attributes
    ----------
    articles
        Number of articles written.
    size_bytes
        Size of the file that holds them.
    """

    articles: int
    size_bytes: int


def extract_articles(
    dump: Path,
    articles: Path,
    *,
    min_article_characters: int,
    workers: int,
    pages_per_shard: int,
) -> Extraction:
    """Write the plain text of every article of a dump, one JSON object a line.

    The lines are in the dump's order and the same whatever the number of workers. Finished shards
    wait in `articles` + `.parts`; an interrupted extraction, run again with the same dump and
    parameters, strips only what is missing.

    Parameters
    ----------
    dump
        A `*-pages-articles.xml.bz2`.
    articles
        The file to write; it appears only when it is complete.
    min_article_characters
        Shortest article that is kept, in characters of plain text.
    workers
        Number of processes that strip markup.
    pages_per_shard
        Number of pages in one shard.

    Returns
    -------
    Extraction
        The number of articles and their size.

    Raises
    ------
    ReproError
        The dump is missing, damaged or without articles, or a worker died.
    """
    if not dump.is_file():
        raise ReproError(f"{dump}: no such file; make it with `repro corpus dump`")
    folder = articles.with_name(articles.name + ".parts")
    _open_parts(folder, dump, min_article_characters, pages_per_shard)
    parts = []
    # A shard that is passed over is read too; reading is some forty times as fast as stripping.
    shards = groupby(
        enumerate(iterate_pages(dump)), lambda numbered: numbered[0] // pages_per_shard
    )
    with process_pool(workers) as pool:
        for number, shard in shards:
            part = folder / f"{number:06d}.jsonl"
            if not part.exists():
                pages = (page for _, page in shard)
                _write_part(pool, part, pages, min_article_characters, workers)
            parts.append(part)
    extraction = _join(dump, parts, articles, min_article_characters)
    shutil.rmtree(folder)
    return extraction


def _write_part(
    pool: Executor, part: Path, pages: Iterable[Page], min_characters: int, workers: int
) -> None:
    extracted: Iterator[Article | None] = map_in_order(
        pool,
        _extract,
        pages,
        chunk_items=_CHUNK_PAGES,
        chunks_in_flight=_CHUNKS_IN_FLIGHT_PER_WORKER * workers,
    )
    with replacing(part) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        try:
            for article in extracted:
                if article is not None and len(article.text) >= min_characters:
                    file.write(to_line(article))
        except BrokenProcessPool:
            raise ReproError(
                f"{part.parent}: a worker died, most often for lack of memory; run again with "
                f"fewer than {workers} workers in params/corpus.yaml (finished shards are kept)"
            ) from None


def _extract(page: Page) -> Article | None:
    try:
        return Article(page.id, page.title, plain_text(page.markup))
    except ParserError as error:
        # The parser's word for a bug of its own: one page of 20 GB is left out, and said so.
        warnings.warn(f"page {page.id} ({page.title}) is left out: {error}", stacklevel=2)
        return None


def _open_parts(folder: Path, dump: Path, min_characters: int, pages_per_shard: int) -> None:
    """Keep the shards in `folder` only if all that their bytes depend on is what it was."""
    status = dump.stat()
    identity = json.dumps(
        {
            "dump": str(dump.resolve()),
            "dump_bytes": status.st_size,
            "dump_mtime_ns": status.st_mtime_ns,
            "min_article_characters": min_characters,
            "pages_per_shard": pages_per_shard,
            "mwparserfromhell": importlib.metadata.version("mwparserfromhell"),
        }
    )
    record = folder / "identity.json"
    if not record.is_file() or record.read_text(encoding="utf-8") != identity:
        if folder.exists():
            shutil.rmtree(folder)
        replace_text(record, identity)


def _join(dump: Path, parts: Iterable[Path], articles: Path, min_characters: int) -> Extraction:
    lines = 0
    with replacing(articles) as temporary:
        with temporary.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    for line in source:
                        target.write(line)
                        lines += 1
            size = target.tell()
        if not lines:
            raise ReproError(
                f"{dump}: no article of at least {min_characters} characters in it; lower "
                f"min_article_characters in params/corpus.yaml, or set `dump` to another file"
            )
    return Extraction(lines, size)
