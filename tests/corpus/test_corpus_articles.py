"""Extraction: right, ordered, resumable, bounded, and loud about bad dumps."""

import bz2
import gc
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest
from synthetic_corpus import FakePage, MakeDump

from repro.corpus import articles as module
from repro.corpus.articles import Extraction, extract_articles
from repro.corpus.bounded import map_in_order, process_pool
from repro.corpus.pages import Page, iterate_pages
from repro.corpus.records import Article, read_articles
from repro.errors import ReproError


def extract(dump: Path, output: Path, **changed: int) -> Extraction:
    parameters = {"min_article_characters": 10, "workers": 2, "pages_per_shard": 7} | changed
    return extract_articles(dump, output, **parameters)


def many(count: int) -> list[FakePage]:
    return [FakePage(i, f"'''Article''' {i} is [[about|of]] {i * i}.") for i in range(1, count + 1)]


def left_beside(output: Path, dump: Path) -> list[str]:
    return sorted(p.name for p in output.parent.iterdir() if p not in (output, dump))


def test_articles_in_order_and_nothing_else(make_dump: MakeDump, tmp_path: Path) -> None:
    pages = many(20)
    odd = [
        FakePage(101, "A talk page, long enough.", namespace=1),
        FakePage(102, "#WEITERLEITUNG [[Page 1]] of today", redirect=True),
        FakePage(103, " #redirect [[Page 1]] as old dumps have them"),
        FakePage(104, "Short."),
        FakePage(105, ""),
    ]
    dump = make_dump(pages[:3] + odd + pages[3:])
    output = tmp_path / "articles.jsonl"
    result = extract(dump, output)
    assert list(read_articles(output, "test")) == [
        Article(p.id, p.title, f"Article {p.id} is of {p.id * p.id}.") for p in pages
    ]
    assert result == Extraction(articles=20, size_bytes=output.stat().st_size)
    assert list(json.loads(output.read_text().splitlines()[0])) == ["id", "title", "text"]
    assert left_beside(output, dump) == []


def test_the_bytes_do_not_depend_on_workers_shards_or_streams(
    make_dump: MakeDump, tmp_path: Path
) -> None:
    one, many_streams = make_dump(many(50)), make_dump(many(50), "multi.bz2", pages_per_stream=4)
    outputs = [tmp_path / f"{i}.jsonl" for i in range(3)]
    extract(one, outputs[0], workers=1, pages_per_shard=1000)
    extract(one, outputs[1], workers=3, pages_per_shard=1)
    extract(many_streams, outputs[2])
    assert len({output.read_bytes() for output in outputs}) == 1


def interrupt_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def stopping(dump: Path) -> Iterator[Page]:
        for number, page in enumerate(iterate_pages(dump)):
            if number == count:
                raise KeyboardInterrupt
            yield page

    monkeypatch.setattr(module, "iterate_pages", stopping)


def test_an_interrupted_extraction_resumes(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = make_dump(many(40))
    whole, output = tmp_path / "whole.jsonl", tmp_path / "articles.jsonl"
    extract(dump, whole)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 24)
        extract(dump, output)
    assert not output.exists()
    parts = tmp_path / "articles.jsonl.parts"
    assert sorted(p.name for p in parts.glob("*")) == [
        *("000000.jsonl", "000001.jsonl", "000002.jsonl", "identity.json")
    ]

    stripped: list[int] = []

    def watched(pool: Any, function: Any, pages: Any, **bounds: int) -> Iterator[Any]:
        kept = list(pages)
        stripped.extend(page.id for page in kept)
        return map_in_order(pool, function, kept, **bounds)

    with monkeypatch.context() as patch:
        patch.setattr(module, "map_in_order", watched)
        extract(dump, output)
    assert stripped == list(range(22, 41))  # three shards of seven were finished
    assert output.read_bytes() == whole.read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize("change", ["dump", "min_article_characters"])
def test_shards_of_something_else_are_not_reused(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    dump = make_dump(many(40))
    output, fresh = tmp_path / "articles.jsonl", tmp_path / "fresh.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_after(patch, 24)
        extract(dump, output)
    changed = {"min_article_characters": 20}
    if change == "dump":
        make_dump(many(60)[20:])
        changed = {}
    extract(dump, output, **changed)
    shutil.copy(dump, tmp_path / "copy.bz2")
    extract(tmp_path / "copy.bz2", fresh, **changed)
    assert output.read_bytes() == fresh.read_bytes()


def damaged(dump: Path, damage: str) -> None:
    content = bytearray(dump.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "corrupt":
        content[len(content) // 2 : len(content) // 2 + 64] = os.urandom(64)
    elif damage == "short XML":
        text = bz2.decompress(content)
        content = bytearray(bz2.compress(text[: len(text) // 2]))
    elif damage == "other XML":
        content = bytearray(bz2.compress(b"<html><body>Sorry</body></html>"))
    elif damage == "no XML":
        content = bytearray(bz2.compress(b"Sorry, " * 500))
    elif damage == "no bzip2":
        content = bytearray(b"<mediawiki></mediawiki>")
    elif damage == "nothing":
        content = bytearray()
    dump.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    ["truncated", "corrupt", "short XML", "other XML", "no XML", "no bzip2", "nothing"],
)
def test_a_damaged_dump_gives_one_clear_error(
    make_dump: MakeDump, tmp_path: Path, damage: str
) -> None:
    filler = [FakePage(i, os.urandom(300).hex()) for i in range(1, 3001)]
    dump, output = make_dump(filler), tmp_path / "articles.jsonl"
    damaged(dump, damage)
    with pytest.raises(ReproError) as error:
        extract(dump, output, pages_per_shard=100_000)
    message = str(error.value)
    assert message.startswith(f"{dump}: damaged or no Wikipedia dump")
    assert f"of {dump.stat().st_size} bytes" in message and "repro corpus dump" in message
    assert "\n" not in message and len(message) < 400
    pages = int(message.split(" pages and ")[0].split()[-1])
    assert (pages > 1000) == (damage in ("truncated", "corrupt", "short XML"))
    assert not output.exists()


def test_a_truncated_multistream_dump_is_noticed(make_dump: MakeDump, tmp_path: Path) -> None:
    # Cut between two streams, the bzip2 is whole; only the XML is not.
    dump = make_dump(many(40), pages_per_stream=10)
    content = dump.read_bytes()
    dump.write_bytes(content[: content.index(b"BZh", len(content) // 2)])
    with pytest.raises(ReproError, match="damaged"):
        extract(dump, tmp_path / "articles.jsonl")


@pytest.mark.parametrize("pages", [[], [FakePage(1, "Short.")], [FakePage(1, "x" * 99, 4)]])
def test_a_dump_without_articles_is_refused(
    make_dump: MakeDump, tmp_path: Path, pages: list[FakePage]
) -> None:
    output = tmp_path / "articles.jsonl"
    with pytest.raises(ReproError, match="no article of at least 10 characters"):
        extract(make_dump(pages), output)
    assert not output.exists()


def test_a_missing_dump_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReproError, match=r"nowhere\.bz2: no such file.*repro corpus dump"):
        extract(tmp_path / "nowhere.bz2", tmp_path / "articles.jsonl")


def test_a_dying_worker_does_not_hang(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "plain_text", lambda markup: os._exit(9))
    with pytest.raises(ReproError, match=r"a worker died.*fewer than 2 workers"):
        extract(make_dump(many(40)), tmp_path / "articles.jsonl")


def test_no_more_pages_are_in_flight_than_the_bound(make_dump: MakeDump) -> None:
    dump = make_dump(many(3000))
    read = done = highest = 0

    def counted() -> Iterator[Page]:
        nonlocal read
        for page in iterate_pages(dump):
            read += 1
            yield page

    with process_pool(2) as pool:
        for page_id in map_in_order(pool, _page_id, counted(), chunk_items=8, chunks_in_flight=4):
            highest = max(highest, read - done)
            done += 1
            assert page_id == done
    assert done == read == 3000
    assert highest == 8 * 4


def _page_id(page: Page) -> int:
    return page.id


def test_extraction_sets_the_bound(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[dict[str, int]] = []

    def watched(pool: Any, function: Any, pages: Any, **given: int) -> Iterator[Any]:
        bounds.append(given)
        return map_in_order(pool, function, pages, **given)

    monkeypatch.setattr(module, "map_in_order", watched)
    extract(make_dump(many(40)), tmp_path / "articles.jsonl", pages_per_shard=40)
    assert bounds == [{"chunk_items": 8, "chunks_in_flight": 8}]


def test_read_pages_leave_no_xml_behind(make_dump: MakeDump) -> None:
    dump = make_dump(many(4000))
    alive = 0
    for number, _ in enumerate(iterate_pages(dump)):
        if number % 1000 == 999:
            gc.collect()
            alive = max(alive, sum(type(o) is Element for o in gc.get_objects()))
    # A dozen for each of the pages that the parser has looked ahead; one for each page ever read,
    # if they were kept below the root.
    assert 0 < alive < 2000


def test_results_keep_their_order_whatever_takes_longest() -> None:
    import time

    def slow_start(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0)
        return number

    with ThreadPoolExecutor(4) as pool:
        bounds = {"chunk_items": 1, "chunks_in_flight": 4}
        assert list(map_in_order(pool, slow_start, range(50), **bounds)) == list(range(50))


@pytest.mark.parametrize("line", ["{", '{"id": 1}', "[]", '{"id": 1, "title": "", "txt": ""}'])
def test_a_damaged_articles_file_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "articles.jsonl"
    path.write_text('{"id": 1, "title": "a", "text": "b"}\n' + line + "\n")
    with pytest.raises(ReproError, match="line 2 is no article"):
        list(read_articles(path, "test"))
