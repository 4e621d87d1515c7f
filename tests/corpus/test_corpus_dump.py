"""The three ways to a dump."""

import bz2
import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from repro.corpus.config import CorpusConfig, read_corpus_config
from repro.corpus.dump import fetch_dump
from repro.errors import ReproError

PARAMS = Path(__file__).parents[2] / "params" / "corpus.yaml"
MEMBER = (
    "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
EXCERPT = bz2.compress(b"<mediawiki/>")


@pytest.fixture
def config() -> CorpusConfig:
    digest = hashlib.sha256(EXCERPT).hexdigest()
    return read_corpus_config(PARAMS).model_copy(update={"excerpt_sha256": digest})


def leftovers(dump: Path) -> list[str]:
    return sorted(path.name for path in dump.parent.iterdir() if path != dump)


# --- the excerpt ---------------------------------------------------------------------------------


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for `python -m pip download`: copy a wheel, and count the calls."""
    folder = tmp_path / "python"
    folder.mkdir()
    with zipfile.ZipFile(folder / "gensim.whl", "w") as wheel:
        wheel.writestr(MEMBER, EXCERPT)
    script = folder / "python"
    script.write_text(
        "#!/bin/sh\n"
        'echo "$@" >> "${0%/*}/calls"\n'
        'while [ "$1" != --dest ]; do shift; done\n'
        'cp "${0%/*}/gensim.whl" "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def test_the_excerpt_is_taken_from_the_wheel_once(
    config: CorpusConfig, fake_python: Path, tmp_path: Path
) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    assert fetch_dump(config, dump) == dump
    assert dump.read_bytes() == EXCERPT
    fetch_dump(config, dump)
    calls = (fake_python.parent / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert calls[0].startswith("-m pip download") and calls[0].endswith("gensim==4.4.0")
    assert leftovers(dump) == []


def test_a_changed_excerpt_is_refused(
    config: CorpusConfig, fake_python: Path, tmp_path: Path
) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    with pytest.raises(ReproError, match=f"not {'0' * 64}"):
        fetch_dump(config.model_copy(update={"excerpt_sha256": "0" * 64}), dump)
    assert not dump.exists() and leftovers(dump) == []


def test_a_wheel_without_the_excerpt_is_named(
    config: CorpusConfig, fake_python: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(fake_python.parent / "gensim.whl", "w") as wheel:
        wheel.writestr("gensim/__init__.py", "")
    with pytest.raises(ReproError, match="gensim_version"):
        fetch_dump(config, tmp_path / "dump.xml.bz2")


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("ERROR: No matching distribution found for gensim==4.4.0", "No matching distribution"),
    ],
)
def test_a_failing_pip_is_explained(
    config: CorpusConfig, fake_python: Path, tmp_path: Path, stderr: str, expected: str
) -> None:
    fake_python.write_text(f"#!/bin/sh\necho '{stderr}' >&2\nexit 1\n")
    with pytest.raises(ReproError, match=expected):
        fetch_dump(config, tmp_path / "dump.xml.bz2")


# --- a file on disk ------------------------------------------------------------------------------


def test_a_local_dump_is_linked_not_copied(config: CorpusConfig, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / "enwiki.xml.bz2"
    source.parent.mkdir()
    source.write_bytes(EXCERPT)
    dump = tmp_path / "data" / "dump.xml.bz2"
    local = config.model_copy(update={"dump": str(source)})
    for _ in range(2):
        assert fetch_dump(local, dump) == source
        assert dump.is_symlink() and os.path.samefile(source, dump)
    assert leftovers(dump) == []


def test_a_dump_in_its_place_is_left_alone(config: CorpusConfig, tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml.bz2"
    dump.write_bytes(EXCERPT)
    assert fetch_dump(config.model_copy(update={"dump": str(dump)}), dump) == dump
    assert not dump.is_symlink() and dump.read_bytes() == EXCERPT


def test_a_bad_local_dump_is_refused(config: CorpusConfig, tmp_path: Path) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    missing = tmp_path / "nowhere.bz2"
    with pytest.raises(ReproError, match=r"nowhere\.bz2: no such file"):
        fetch_dump(config.model_copy(update={"dump": str(missing)}), dump)
    missing.write_text("<mediawiki/>")
    with pytest.raises(ReproError, match=r"nowhere\.bz2: not bzip2"):
        fetch_dump(config.model_copy(update={"dump": str(missing)}), dump)
    assert not os.path.lexists(dump)


# --- a URL ---------------------------------------------------------------------------------------


@dataclass
class Site:
    """One file on a server that knows ranges and can hang up."""

    content: bytes
    etag: str = '"one"'
    hang_up_after: int | None = None
    status: int | None = None
    url: str = ""
    sent: list[tuple[str | None, int]] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site(b"BZh" + os.urandom(3_000_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if served.status:
                self.send_error(served.status)
                return
            start = 0
            wanted = self.headers["Range"]
            if wanted and self.headers["If-Range"] == served.etag:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(served.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(served.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = served.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", served.etag)
            self.end_headers()
            body = body[: served.hang_up_after]
            served.sent.append((wanted, len(body)))
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/dump.xml.bz2"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield served
    server.shutdown()
    server.server_close()


def test_a_url_is_fetched_once(config: CorpusConfig, site: Site, tmp_path: Path) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    assert fetch_dump(config.model_copy(update={"dump": site.url}), dump) == dump
    assert dump.read_bytes() == site.content
    assert leftovers(dump) == []
    written = dump.stat().st_mtime_ns
    fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert dump.stat().st_mtime_ns == written


def test_an_interrupted_download_resumes(config: CorpusConfig, site: Site, tmp_path: Path) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    site.hang_up_after = 1_200_000
    with pytest.raises(ReproError, match=r"1200000 of 3000003 bytes.*fix: run again"):
        fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert not dump.exists()
    site.hang_up_after = None
    fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert dump.read_bytes() == site.content
    assert site.sent[1:] == [("bytes=1200000-", 1_800_003)]
    assert leftovers(dump) == []


def test_a_dump_that_changed_meanwhile_is_fetched_anew(
    config: CorpusConfig, site: Site, tmp_path: Path
) -> None:
    dump = tmp_path / "data" / "dump.xml.bz2"
    site.hang_up_after = 1_200_000
    with pytest.raises(ReproError):
        fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    site.hang_up_after, site.etag, site.content = None, '"two"', b"BZh" + os.urandom(2_000_000)
    fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert dump.read_bytes() == site.content


def test_a_download_that_only_lacked_its_name_is_finished(
    config: CorpusConfig, site: Site, tmp_path: Path
) -> None:
    dump = tmp_path / "dump.xml.bz2"
    dump.with_name("dump.xml.bz2.part").write_bytes(site.content)
    dump.with_name("dump.xml.bz2.part.version").write_text(site.etag)
    fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert dump.read_bytes() == site.content and site.sent == []
    assert leftovers(dump) == []


def test_what_is_not_bzip2_is_removed(config: CorpusConfig, site: Site, tmp_path: Path) -> None:
    site.content = b"<html>Sorry</html>"
    dump = tmp_path / "dump.xml.bz2"
    with pytest.raises(ReproError, match="not bzip2"):
        fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    assert not dump.exists() and leftovers(dump) == []


def test_server_errors_are_named(config: CorpusConfig, site: Site, tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml.bz2"
    site.status = 404
    with pytest.raises(ReproError, match="404 Not Found"):
        fetch_dump(config.model_copy(update={"dump": site.url}), dump)
    with pytest.raises(ReproError, match="fix: run again to resume"):
        fetch_dump(config.model_copy(update={"dump": "http://127.0.0.1:1/dump.xml.bz2"}), dump)
