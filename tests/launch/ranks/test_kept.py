"""Ranks between the stages of a pipeline: who may take them, and that none are left behind."""

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from waiting import wait_until

from repro.launch.messages import Site
from repro.launch.ranks import kept, sites
from repro.launch.ranks.kept import keep, keep_ranks, take
from repro.launch.ranks.sites import Session, open_site

_SITE = Site(topology=None, ranks=1, cores=None)
_OTHER = Site(topology=None, ranks=2, cores=None)
# Stands for a supervisor: it rests until its pipe ends.
_RESTS = "import os, sys; os.read(int(sys.argv[1]), 1)"
_Supervisor = tuple["subprocess.Popen[bytes]", Connection]


@pytest.fixture(autouse=True)
def _timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As who measures, whatever these tests give way to."""
    monkeypatch.setattr(kept, "gives_way", lambda: False)


@contextmanager
def _pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with keep_ranks() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with _pipeline(monkeypatch):
        yield


@pytest.fixture
def long_folder(tmp_path: Path) -> Path:
    """As some jobs have it for temporary files: too long for the address of a socket in it."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    return folder


def _started() -> _Supervisor:
    ours, theirs = multiprocessing.Pipe()
    command = [sys.executable, "-S", "-c", _RESTS, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    return process, ours


def _left(site: Site = _SITE) -> "subprocess.Popen[bytes]":
    """The supervisor of ranks that a stage leaves when it ends."""
    process, pipe = _started()
    with pipe, TemporaryFile() as log:
        assert keep(site, pipe, log)
    assert process.poll() is None
    return process


def _is_taken(site: Site = _SITE) -> bool:
    if (taken := take(site)) is None:
        return False
    for one in taken:
        one.close()
    return True


def test_without_a_pipeline_nobody_keeps_ranks() -> None:
    process, pipe = _started()
    with pipe, TemporaryFile() as log:
        assert not keep(_SITE, pipe, log)
    assert process.wait() == 0 and not _is_taken()


def test_what_is_taken_is_whole_and_ends_with_who_took_it(keeping: None) -> None:
    process = _left()
    taken = take(_SITE)
    assert taken is not None and take(_SITE) is None
    pipe, log = taken
    log.write(b"last words")
    log.seek(0)
    assert log.read() == b"last words" and process.poll() is None
    log.close()
    pipe.close()
    assert process.wait() == 0


def test_another_site_ends_those_that_are_kept(keeping: None) -> None:
    process = _left()
    assert not _is_taken(_OTHER)
    # Not to be in the way of those that start now.
    assert process.wait(0.5) == 0
    process = _left()
    other = _left(_OTHER)
    assert process.wait(0.5) == 0 and other.poll() is None
    assert _is_taken(_OTHER)


def test_ranks_of_other_code_are_not_taken(keeping: None, monkeypatch: pytest.MonkeyPatch) -> None:
    process = _left()
    monkeypatch.setattr(kept, "sources_digest", lambda: "edited")
    assert not _is_taken() and process.wait() == 0


def test_who_was_killed_is_neither_kept_nor_taken(keeping: None) -> None:
    process = _left()
    process.kill()
    process.wait()
    assert not _is_taken()
    process, pipe = _started()
    process.kill()
    process.wait()
    with pipe, TemporaryFile() as log:
        assert not keep(_SITE, pipe, log)


def test_who_asks_may_be_killed_meanwhile(keeping: None) -> None:
    process = _left()
    for _ in range(2):
        with kept._asked(Path(os.environ["REPRO_RANKS"]), b""):
            pass
    # It may have been the stage that was to take them.
    assert process.wait() == 0
    _left()
    assert _is_taken()


def test_a_pipeline_that_was_killed_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as listening, kept._address_in(tmp_path) as address:
        listening.bind(address)
    monkeypatch.setenv("REPRO_RANKS", str(tmp_path))
    process, pipe = _started()
    with pipe, TemporaryFile() as log:
        assert not keep(_SITE, pipe, log) and not _is_taken()
    assert process.wait() == 0


def test_what_gives_way_leaves_ranks_alone(keeping: None, monkeypatch: pytest.MonkeyPatch) -> None:
    process = _left()
    monkeypatch.setattr(kept, "gives_way", lambda: True)
    assert not _is_taken()
    own, pipe = _started()
    with pipe, TemporaryFile() as log:
        assert not keep(_SITE, pipe, log)
    assert own.wait() == 0 and process.poll() is None


def test_a_folder_may_have_a_long_name_and_is_removed(
    long_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(long_folder))
    with _pipeline(monkeypatch):
        (used,) = long_folder.iterdir()
        assert used.stat().st_mode & 0o077 == 0
        _left()
        assert _is_taken()
    assert not list(long_folder.iterdir())


def test_the_pipeline_waits_for_the_end_of_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    with _pipeline(monkeypatch):
        process = _left()
    assert process.wait(0.5) == 0


def test_ranks_of_what_failed_are_not_kept(keeping: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(site: Site, say: Callable[[str], None]) -> Session:
        process, pipe = _started()
        return Session(site, pipe, TemporaryFile(), say, process)

    monkeypatch.setattr(sites, "_start", start)
    monkeypatch.setattr(Session, "_begin", lambda session: None)
    with pytest.raises(ZeroDivisionError), open_site(_SITE) as failed:
        raise ZeroDivisionError
    assert failed._supervisor is not None and failed._supervisor.returncode == 0
    assert not _is_taken()


_PIPELINE = """
import os, subprocess, sys, time
from repro.launch.ranks.kept import keep_ranks
with keep_ranks() as environment:
    stage = [sys.executable, "-c", sys.argv[1]]
    subprocess.run(stage, env={**os.environ, **environment}, check=True)
    print("resting", flush=True)
    time.sleep(600)
"""
_STAGE = """
from repro.launch.messages import Site
from repro.launch.ranks import kept
kept.gives_way = lambda: False
from repro.launch.ranks.sites import open_site
for _ in range(2):
    with open_site(Site(topology=None, ranks=1, cores=None)) as session:
        print(session._supervisor and session._supervisor.pid, flush=True)
"""


@pytest.mark.slow
def test_real_ranks_are_taken_and_end_with_the_pipeline(long_folder: Path) -> None:
    command = [sys.executable, "-c", _PIPELINE, _STAGE]
    own = {**os.environ, "TMPDIR": str(long_folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=own) as pipeline:
        assert pipeline.stdout is not None
        try:
            first, second, rests = (pipeline.stdout.readline().decode() for _ in range(3))
            assert _runs(int(first)) and (second, rests) == ("None\n", "resting\n")
        finally:
            pipeline.kill()
    wait_until(lambda: not _runs(int(first)))


def _runs(pid: int) -> bool:
    """Whether it is there, and not only for who has not asked how it ended."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
