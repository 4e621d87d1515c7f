"""Nothing listens beyond this machine, and no file of someone else runs code or explodes."""

import ast
import bz2
import gzip
import os
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import xarray as xr
from rank_pool import RankPool
from synthetic_corpus import HEAD, FakePage
from waiting import wait_until

from repro.atomic import replace_text
from repro.catalog.jobs import read_job
from repro.catalog.models.hugging_face import read_config
from repro.corpus import dump
from repro.corpus.pages import Dropped, cut_pages, read_pages
from repro.corpus.streams import decompress
from repro.errors import ReproError
from repro.explorer.page_state import _pack, _unpack
from repro.launch.nodes.slurm import job_script
from repro.logs import reading
from repro.paths import ROOT
from repro.results.store import write_dataset
from repro.testbed.ownership import owned_folder

_SOURCES = ROOT / "src" / "repro"
# Calls that run code from data, write for others, or take a name that can be guessed.
_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.chmod", "os.umask"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "np.load", "torch.load"),
    *("pd.read_pickle", "tempfile.mktemp", "pickle.load", "pickle.loads", "os.mkfifo"),
}
_METHODS = (".extractall", ".extract", ".chmod", ".read_pickle")
_MODULES = {"pickle", "marshal", "shelve", "dill", "tarfile", "zipfile", "xml", "telnetlib"}
_ARGUMENTS = {"shell", "allow_pickle"}
_JOB_FOLDER = "files of the user's own job, in results/"
# File and what it uses, with the reason why it may.
_ALLOWED = {
    ("catalog/reading.py", "yaml.load"): "with the safe loader",
    ("corpus/dump.py", "zipfile"): "one member, to a path that is not the archive's",
    ("corpus/pages.py", "xml"): "parses within a page's tags, where nothing can be declared",
    **{
        (f"launch/nodes/{name}.py", use): _JOB_FOLDER
        for name, use in (
            *(("job", "pickle"), ("job", "pickle.loads"), ("node_rank", "pickle")),
            *(("node_rank", "pickle.loads"), ("partition", "pickle"), ("step", "pickle")),
            ("step", "pickle.loads"),
        )
    },
}
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
_LISTEN = "0A"


def _uses(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name.split(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            yield called
            yield from (end for end in _METHODS if called.endswith(end))
            yield from (word.arg for word in node.keywords if word.arg in _ARGUMENTS and word.arg)


def test_no_source_runs_code_from_files_or_writes_for_others() -> None:
    found = {
        (str(path.relative_to(_SOURCES)), use)
        for path in _SOURCES.rglob("*.py")
        for use in _uses(ast.parse(path.read_text(encoding="utf-8")))
        if use in _CALLS | _MODULES | _ARGUMENTS or use in _METHODS
    }
    assert found == set(_ALLOWED)


def _descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _listening(pid: int) -> set[tuple[str, int]]:
    """Return addresses and ports, in this namespace, at which a process and its own listen."""
    found = set()
    for one in _descendants(pid):
        try:
            if os.readlink(f"/proc/{one}/ns/net") != os.readlink("/proc/self/ns/net"):
                continue
            links = {os.readlink(file.path) for file in os.scandir(f"/proc/{one}/fd")}
            tables = [Path(f"/proc/{one}/net/{kind}").read_text() for kind in ("tcp", "tcp6")]
        except OSError:
            continue
        for line in (line for table in tables for line in table.splitlines()[1:]):
            fields = line.split()
            if fields[3] == _LISTEN and f"socket:[{fields[9]}]" in links:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


def test_listening_sockets_are_found() -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        assert ("00000000", server.getsockname()[1]) in _listening(os.getpid())


@contextmanager
def _explorer(folder: Path) -> Iterator[tuple[int, int]]:
    """Serve the explorer; yield its process and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("repro"), "explore", "--no-show", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: port in {number for _, number in _listening(process.pid)})
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _status(port: int, origin: str) -> int:
    """Return the status of a websocket that a page of this origin opens."""
    request = (
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: bokeh, token\r\n"
        f"Origin: {origin}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request.encode())
        return int(connection.recv(4096).split()[1])


@pytest.mark.slow
def test_the_explorer_serves_its_own_page_only(tmp_path: Path) -> None:
    with _explorer(tmp_path) as (pid, port):
        listening = _listening(pid)
        assert listening and all(address in _LOOPBACK for address, _ in listening)
        assert _status(port, f"http://localhost:{port}") == 101
        for other in ("http://example.org", f"http://example.org:{port}", "null"):
            assert _status(port, other) == 403


@pytest.mark.slow
def test_local_ranks_listen_on_the_loopback(pool: RankPool) -> None:
    pool.run(os.getpid, ranks=2)
    listening = _listening(os.getpid())
    assert listening and all(address in _LOOPBACK for address, _ in listening)


@pytest.mark.testbed
def test_ranks_on_emulated_nodes_listen_in_their_namespaces() -> None:
    from repro.catalog.systems.topology import Level, Topology
    from repro.launch.ranks.pool import open_pool
    from repro.launch.request import PoolSpec

    levels = (
        Level(name="node", members=2, link_gbps=1),
        Level(name="fabric", members=2, link_gbps=1),
    )
    before = _listening(os.getpid())
    with open_pool(PoolSpec(Topology(levels=levels), 4, cores=None)):
        more = _listening(os.getpid()) - before
        assert all(address in _LOOPBACK for address, _ in more)


def test_written_files_are_not_for_others(tmp_path: Path) -> None:
    replace_text(tmp_path / "a.json", "{}")
    write_dataset(xr.Dataset({"a": 1.0}), tmp_path / "b.nc")
    for path in tmp_path.iterdir():
        assert not path.stat().st_mode & stat.S_IWOTH, path


def test_temporary_folders_are_the_users_and_have_new_names() -> None:
    with owned_folder() as first, owned_folder() as second:
        assert first.parent == second.parent and first != second
        assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_a_slurm_job_script_has_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-of-this-user")
    sizes = {"nodes": 2, "ranks_per_node": 4, "gpus_per_node": 4, "time_limit_min": 9, "jobs": 1}
    words = {"name": "a", "partition": "b", "options": [], "setup": "", "command": ["python"]}
    assert "secret" not in job_script(tmp_path, **sizes, **words)  # type: ignore[arg-type]


def test_a_yaml_tag_runs_nothing(tmp_path: Path) -> None:
    path, made = tmp_path / "job.yaml", tmp_path / "made"
    path.write_text(f"model: !!python/object/apply:os.mkdir ['{made}']\n")
    with pytest.raises(ReproError, match="not valid YAML"):
        read_job(path)
    assert not made.exists()


def test_anchors_of_yaml_do_not_multiply(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    path.write_text("\n".join([*lines, "model: *a59"]))
    with pytest.raises(ReproError, match=r"job\.yaml") as error:
        read_job(path)
    assert len(str(error.value)) < 1000


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 10**6)
    with pytest.raises(ReproError, match="not JSON"):
        read_config(path)


def test_a_log_that_decompresses_to_more_than_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LARGEST_BYTES", 1 << 20)
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(ReproError, match="has more than 1048576 bytes"):
        reading.read_log(path)


def test_an_address_that_decompresses_to_more_than_the_limit_is_refused() -> None:
    assert _unpack(_pack("a" * 1000)) == "a" * 1000
    with pytest.raises(ValueError, match="longer than"):
        _unpack(_pack("a" * (2 << 20)))


def test_a_dump_that_explodes_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.bz2"
    page = "<page><title>Large</title>"
    path.write_bytes(bz2.compress((HEAD + page).encode() + b" " * (96 << 20) + b"</page>"))
    assert path.stat().st_size < 10_000
    with path.open("rb") as file:
        pieces = decompress(file, 0, path.stat().st_size)
        sizes: list[int] = []

        def counted() -> Iterator[bytes]:
            for piece in pieces:
                sizes.append(len(piece))
                yield piece

        (cut,) = cut_pages(counted())
    assert sum(sizes) > 96 << 20 and max(sizes) <= 1 << 20 and len(cut) < 17 << 20
    (dropped,) = read_pages(cut)
    assert isinstance(dropped, Dropped)


def test_entities_are_not_expanded() -> None:
    entities = "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 30))
    declared = (
        f"<!DOCTYPE page [<!ENTITY a0 'x'>{entities}<!ENTITY f SYSTEM 'file:///etc/passwd'>]>"
    )
    for markup in ("&a29;", "&f;"):
        page = FakePage(1, "").xml().replace('preserve"></text>', f'preserve">{markup}</text>')
        for xml in (declared + page, page.replace("<page>", f"<page>{declared}")):
            *_, last = (one for cut in cut_pages([xml.encode()]) for one in read_pages(cut))
            assert isinstance(last, Dropped) and last.reason == "invalid XML"


def test_a_wheel_writes_one_file_only(tmp_path: Path) -> None:
    wheel, made = tmp_path / "a.whl", tmp_path / "in" / "dump"
    made.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../../evil", "x")
        archive.writestr(dump._MEMBER, "text")
    dump._extract_member(wheel, made)
    assert {path.name for path in tmp_path.rglob("*")} == {"a.whl", "in", "dump"}
