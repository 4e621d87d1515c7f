"""Extraction: right, ordered, resumable, bounded, and loud about bad dumps."""

import bz2
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from synthetic_corpus import HEAD, TAIL, FakePage, MakeDump

from repro.corpus import articles as module
from repro.corpus import pages as pages_module
from repro.corpus.articles import extract_articles
from repro.corpus.manifest import stats
from repro.corpus.records import Article, read_articles
from repro.corpus.shards import Share, remove_shards, shard_folder
from repro.corpus.streams import decompress
from repro.errors import ReproError


def extract(dump: Path, output: Path, **changed: Any) -> dict[str, Any]:
    """Extract, and give the manifest, which adds up; empty while other shares are not done."""
    parameters = {"min_article_characters": 10, "workers": 2, "shard_bytes": 300} | changed
    manifests = output.with_name(output.stem + "-manifests")
    if not extract_articles(dump, output, manifests / "articles.json", **parameters):
        return {}
    assert list(stats(manifests))
    found: dict[str, Any] = json.loads((manifests / "articles.json").read_text())
    shutil.rmtree(manifests)
    return found


def many(count: int) -> list[FakePage]:
    return [FakePage(i, f"'''Article''' {i} is [[about|of]] {i * i}.") for i in range(1, count + 1)]


def left_beside(output: Path, dump: Path) -> list[str]:
    return sorted(p.name for p in output.parent.iterdir() if p not in (output, dump))


def test_articles_in_order_and_every_drop_counted(make_dump: MakeDump, tmp_path: Path) -> None:
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
    manifest = extract(dump, output)
    texts = [f"Article {p.id} is of {p.id * p.id}." for p in pages]
    assert list(read_articles(output, "test")) == [
        Article(p.id, p.title, text) for p, text in zip(pages, texts, strict=True)
    ]
    assert manifest["pages"] == 25 and manifest["articles"] == 20
    assert manifest["dropped"] == {"other namespace": 1, "redirect": 2, "too short": 2}
    assert manifest["characters"] == sum(map(len, texts))
    assert manifest["article_bytes"] == output.stat().st_size
    assert manifest["articles_of_characters"] == {"16": 20}
    assert list(json.loads(output.read_text().splitlines()[0])) == ["id", "title", "text"]
    assert left_beside(output, dump) == []


def test_manifests_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    (tmp_path / "articles.json").write_text('{"pages": 5, "articles": 3, "dropped": {"x": 1}}')
    with pytest.raises(ReproError, match="5 pages are not 3 articles and 1 dropped"):
        list(stats(tmp_path))
    (tmp_path / "articles.json").write_text('{"pages": 4, "articles": 3, "dropped": {"x": 1}}')
    (tmp_path / "gpt.json").write_text('{"documents": 2}')
    with pytest.raises(ReproError, match="2 documents of 3 articles"):
        list(stats(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("pages_per_stream", [None, 4])
def test_the_bytes_do_not_depend_on_workers_shares_and_shards(
    make_dump: MakeDump, tmp_path: Path, pages_per_stream: int | None
) -> None:
    dump = make_dump(many(60), pages_per_stream=pages_per_stream)
    whole = tmp_path / "whole.jsonl"
    manifest = extract(dump, whole, workers=1, shard_bytes=1 << 20)
    for count in (1, 2, 5):
        output = tmp_path / f"{count}.jsonl"
        assert extract(dump, output, workers=count) == manifest
        assert output.read_bytes() == whole.read_bytes()
        shared = tmp_path / f"shared-{count}.jsonl"
        for number in reversed(range(count)):
            extract(dump, shared, workers=1, share=Share(number, count))
        if count > 1:
            # Shares put nothing together: that is one job's, which finds it all done.
            assert not shared.exists()
        assert extract(dump, shared) == manifest
        assert shared.read_bytes() == whole.read_bytes()


def test_pages_that_streams_cut_anywhere_are_whole_and_there_once(tmp_path: Path) -> None:
    xml = (HEAD + "".join(page.xml() for page in many(40)) + TAIL).encode()
    source = random.Random(7)
    for _ in range(5):
        cuts = [0, *sorted(source.sample(range(300, len(xml)), 60)), len(xml)]
        dump = tmp_path / "cut.bz2"
        pieces = [xml[low:high] for low, high in pairwise(cuts)]
        dump.write_bytes(b"".join(bz2.compress(piece) for piece in pieces))
        manifest = extract(dump, tmp_path / "articles.jsonl", workers=1)
        assert manifest["pages"] == manifest["articles"] == 40
        found = [article.id for article in read_articles(tmp_path / "articles.jsonl", "test")]
        assert found == list(range(1, 41))


def test_a_share_is_a_number_below_another() -> None:
    assert Share.parse("15/16") == Share(15, 16)
    for text in ("16/16", "1", "a/b", "-1/2", "1/"):
        with pytest.raises(ReproError, match="share is"):
            Share.parse(text)


_KILLED = """
import sys, time
from pathlib import Path
from repro.corpus import articles as module
original = module.plain_text
def slow(markup):
    time.sleep(0.01)
    return original(markup)
module.plain_text = slow
dump, output = map(Path, sys.argv[1:3])
print("begun", flush=True)
module.extract_articles(
    dump, output, output.with_suffix(".json"), min_article_characters=10, workers=2, shard_bytes=300
)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("pages_per_stream", [None, 2])
def test_killed_at_any_point_it_goes_on(
    make_dump: MakeDump, tmp_path: Path, pages_per_stream: int | None
) -> None:
    dump = make_dump(many(200), pages_per_stream=pages_per_stream)
    whole, output = tmp_path / "whole.jsonl", tmp_path / "articles.jsonl"
    manifest = extract(dump, whole)
    source = random.Random(3)
    kept: list[int] = []
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, dump, output], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(source.uniform(0.05, 0.6))
        process.send_signal(signal.SIGKILL)
        said = process.communicate()[0]
        kept.append(len(list(tmp_path.glob("articles.jsonl.parts-*/*.json"))))
        if said:
            break
        # Killed after everything was put together, it is whole.
        assert not output.exists() or output.read_bytes() == whole.read_bytes()
    assert any(kept)
    assert extract(dump, output) == manifest
    assert output.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts-*"))


def extract_until(name: str, dump: Path, output: Path) -> None:
    original = os.replace

    def killing(source: Path, target: Path) -> None:
        if Path(target).name == name:
            os.kill(os.getpid(), signal.SIGKILL)
        original(source, target)

    os.replace = killing
    extract(dump, output)


@pytest.mark.parametrize(
    "name", ["000001.jsonl", "000001.json", "joined.jsonl", "articles.jsonl", "articles.json"]
)
def test_killed_at_any_rename_it_goes_on(make_dump: MakeDump, tmp_path: Path, name: str) -> None:
    dump = make_dump(many(40), pages_per_stream=4)
    whole, output = tmp_path / "whole.jsonl", tmp_path / "articles.jsonl"
    manifest = extract(dump, whole)
    process = get_context("fork").Process(target=extract_until, args=(name, dump, output))
    process.start()
    process.join()
    assert process.exitcode == (1 if name.startswith("0") else -signal.SIGKILL)
    assert output.exists() == (name == "articles.json")
    assert extract(dump, output) == manifest
    assert output.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts-*"))


def test_whoever_is_killed_while_shards_are_removed_leaves_none_that_seems_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "articles.jsonl"
    folder = shard_folder(target, {})
    folder.mkdir()
    for name, suffix in product(range(20), (".json", ".jsonl")):
        (folder / f"{name:06d}{suffix}").touch()
    remove = os.unlink

    def looking(path: str, *, dir_fd: int | None = None) -> None:
        remove(path, dir_fd=dir_fd)
        assert all(one.with_suffix(".jsonl").exists() for one in folder.glob("*.json"))

    monkeypatch.setattr(os, "unlink", looking)
    remove_shards(target)
    assert not folder.exists()


def test_finished_shards_are_not_done_again(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump, output = make_dump(many(40), pages_per_stream=4), tmp_path / "articles.jsonl"
    extract(dump, output, share=Share(0, 2))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parts-*/*.jsonl")}
    assert len(done) > 1 and not output.exists()
    assert extract(dump, output, share=Share(0, 2)) == {}
    assert done == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.parts-*/*.jsonl")}


@pytest.mark.parametrize("change", ["dump", "min_article_characters"])
def test_shards_of_something_else_are_not_reused(
    make_dump: MakeDump, tmp_path: Path, change: str
) -> None:
    dump = make_dump(many(40), pages_per_stream=4)
    output, fresh = tmp_path / "articles.jsonl", tmp_path / "fresh.jsonl"
    extract(dump, output, share=Share(0, 2))
    changed = {"min_article_characters": 20}
    if change == "dump":
        make_dump(many(60)[20:], pages_per_stream=4)
        changed = {}
    extract(dump, output, **changed)
    shutil.copy(dump, tmp_path / "copy.bz2")
    extract(tmp_path / "copy.bz2", fresh, **changed)
    assert output.read_bytes() == fresh.read_bytes()
    assert not list(tmp_path.glob("*.parts-*"))


def damaged(dump: Path, damage: str, seed: int = 0) -> None:
    content = bytearray(dump.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    elif damage == "corrupt":
        content[len(content) // 2 : len(content) // 2 + 64] = random.Random(seed).randbytes(64)
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


@pytest.mark.parametrize("pages_per_stream", [None, 100])
@pytest.mark.parametrize(
    "damage",
    ["truncated", "corrupt", "short XML", "other XML", "no XML", "no bzip2", "nothing"],
)
def test_a_damaged_dump_gives_one_clear_error(
    make_dump: MakeDump, tmp_path: Path, damage: str, pages_per_stream: int | None
) -> None:
    filler = [FakePage(i, random.Random(i).randbytes(300).hex()) for i in range(1, 1001)]
    dump, output = make_dump(filler, pages_per_stream=pages_per_stream), tmp_path / "articles.jsonl"
    damaged(dump, damage)
    with pytest.raises(ReproError) as error:
        extract(dump, output, shard_bytes=1 << 15)
    message = str(error.value)
    assert message.startswith(f"{dump}: damaged or not a Wikipedia dump")
    assert f"it has {dump.stat().st_size} bytes" in message and "repro corpus dump" in message
    assert ("byte " in message) == (damage in ("truncated", "corrupt", "no bzip2"))
    assert "\n" not in message and len(message) < 400
    assert not output.exists()


def test_a_corrupt_block_is_named_though_it_decodes(make_dump: MakeDump, tmp_path: Path) -> None:
    filler = [FakePage(i, random.Random(i).randbytes(300).hex()) for i in range(1, 1001)]
    dump = make_dump(filler, pages_per_stream=None)
    damaged(dump, "corrupt", seed=24)
    with dump.open("rb") as file:
        assert b"<mediawiki" not in next(decompress(file, 0, dump.stat().st_size))
    with pytest.raises(ReproError, match="Invalid data stream before byte"):
        extract(dump, tmp_path / "articles.jsonl", shard_bytes=1 << 15)


def test_a_truncated_multistream_dump_is_noticed(make_dump: MakeDump, tmp_path: Path) -> None:
    # Cut between two streams, the bzip2 is whole; only the XML is not.
    dump = make_dump(many(40), pages_per_stream=10)
    content = dump.read_bytes()
    dump.write_bytes(content[: content.index(b"BZh", len(content) // 2)])
    with pytest.raises(ReproError, match="damaged"):
        extract(dump, tmp_path / "articles.jsonl")


def _bomb() -> str:
    entities = "".join(f'<!ENTITY b{i} "{f"&b{i - 1};" * 10}">' for i in range(1, 10))
    return (
        f'<!DOCTYPE mediawiki [<!ENTITY b0 "ha"><!ENTITY f SYSTEM "file:///etc/passwd">{entities}]>'
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"<ns>0</ns><id>7</id>", b"<ns>0</ns><id>7", "invalid XML"),
        (b"<title>Page 7</title>", b"<title>Page \xff7</title>", "invalid XML"),
        (b"<title>Page 7</title>", b"", None),
        (b"<title>Page 7</title><ns>0</ns>", b"<title>Page 7</title>", "invalid XML"),
        (
            b"</revision></page>\n<page><title>Page 8",
            b"</revision>\n<page><title>Page 8",
            "invalid XML",
        ),
        (b"Article''' 7 is", b"Article''' &b9; &f; is", "invalid XML"),
        (b"Article''' 7 is", b"Article''' \x01 is", "invalid XML"),
        (b"Article''' 7 is", b"Article''' " + b"word " * 50_000 + b"is", "too large"),
        (b"Article''' 7 is", b"Article''' " + b"{{a|" * 9000 + b"}}" * 9000 + b" 7 is", None),
        (b"Article''' 7 is", b"Article''' " + b"{{a|" * 9000 + b" is", "unreadable markup"),
    ],
)
def test_a_bad_page_is_dropped_alone_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, reason: str | None
) -> None:
    monkeypatch.setattr(pages_module, "LARGEST_PAGE_BYTES", 100_000)
    xml = (_bomb() + HEAD + "".join(page.xml() for page in many(20)) + TAIL).encode()
    assert xml.count(old) == 1
    dump, output = tmp_path / "dump.bz2", tmp_path / "articles.jsonl"
    dump.write_bytes(bz2.compress(xml.replace(old, new)))
    manifest = extract(dump, output)
    assert manifest["pages"] == 20
    assert manifest.get("dropped", {}) == ({reason: 1} if reason else {})
    assert len(manifest["named"]) == (1 if reason else 0)
    kept = [article.id for article in read_articles(output, "test")]
    assert kept == [i for i in range(1, 21) if i != 7 or not reason]
    assert "ha" not in output.read_text() and "root:" not in output.read_text()


@pytest.mark.slow
def test_a_little_bzip2_that_holds_gigabytes_stays_small(tmp_path: Path) -> None:
    block = bz2.compress(bytes(1 << 28))  # a quarter of a gigabyte in 200 bytes
    pages = "".join(page.xml() for page in many(3)).encode()
    dump = tmp_path / "dump.bz2"
    open_page = b"<page><title>Large</title>"
    dump.write_bytes(
        bz2.compress(HEAD.encode() + pages + open_page)
        + block
        + bz2.compress(b"</page>" + TAIL.encode())
    )
    code = (
        "import sys, resource; from pathlib import Path; from repro.corpus import articles as a; "
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29)); "
        "a.extract_articles(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), "
        "min_article_characters=10, workers=1)"
    )
    manifest = tmp_path / "articles.json"
    subprocess.run([sys.executable, "-c", code, dump, tmp_path / "a.jsonl", manifest], check=True)
    found = json.loads(manifest.read_text())
    assert found["pages"] == 4 and found["dropped"] == {"too large": 1}
    assert found["named"] == ["too large: Large"]


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
    with pytest.raises(
        ReproError,
        match=r"a worker died.*fix: set workers in params/corpus\.yaml below 2 and run again",
    ):
        extract(make_dump(many(40)), tmp_path / "articles.jsonl")


@pytest.mark.parametrize("line", ["{", '{"id": 1}', "[]", '{"id": 1, "title": "", "txt": ""}'])
def test_a_damaged_articles_file_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "articles.jsonl"
    path.write_text('{"id": 1, "title": "a", "text": "b"}\n' + line + "\n")
    with pytest.raises(ReproError, match="line 2 is not an article"):
        list(read_articles(path, "test"))
