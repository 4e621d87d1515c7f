"""Ranks between one experiment and the next: who gets them, and that none are left behind."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from waiting import wait_until

from repro.launch.messages import Site
from repro.launch.ranks import sites
from repro.launch.ranks.sites import Session, keep_ranks, open_site

_SITE = Site(topology=None, ranks=1, cores=None)
_OTHER = Site(topology=None, ranks=2, cores=None)
# Stands for a supervisor: it rests until its pipe ends.
_RESTS = "import os, sys; os.read(int(sys.argv[1]), 1)"


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """The supervisors, in their order."""
    supervisors: list[subprocess.Popen[bytes]] = []

    def start(site: Site, say: Callable[[str], None]) -> Session:
        ours, theirs = multiprocessing.Pipe()
        command = [sys.executable, "-S", "-c", _RESTS, str(theirs.fileno())]
        supervisors.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        return Session(site, ours, TemporaryFile(), say, supervisors[-1])

    monkeypatch.setattr(sites, "_start", start)
    monkeypatch.setattr(Session, "_begin", lambda session: None)
    return supervisors


def _use(site: Site = _SITE) -> None:
    with open_site(site):
        pass


def _running(started: list["subprocess.Popen[bytes]"]) -> list[bool]:
    return [one.poll() is None for one in started]


def test_nobody_keeps_ranks_unless_asked(started: list["subprocess.Popen[bytes]"]) -> None:
    _use()
    _use()
    assert _running(started) == [False, False]


def test_ranks_of_the_same_site_go_on(started: list["subprocess.Popen[bytes]"]) -> None:
    with keep_ranks():
        _use()
        _use()
        assert _running(started) == [True]
    assert _running(started) == [False]


def test_another_site_ends_those_that_rest(started: list["subprocess.Popen[bytes]"]) -> None:
    with keep_ranks():
        _use()
        with open_site(_OTHER):
            # Not to be in the way of those that start.
            assert _running(started) == [False, True]
        _use()
        assert _running(started) == [False, False, True]


def test_what_was_killed_does_not_go_on(started: list["subprocess.Popen[bytes]"]) -> None:
    with keep_ranks():
        _use()
        started[0].kill()
        started[0].wait()
        _use()
        assert _running(started) == [False, True]
        with open_site(_SITE):
            started[1].kill()
            started[1].wait()
        _use()
        assert _running(started) == [False, False, True]


def test_ranks_of_what_failed_do_not_go_on(started: list["subprocess.Popen[bytes]"]) -> None:
    with keep_ranks():
        with pytest.raises(ZeroDivisionError), open_site(_SITE):
            raise ZeroDivisionError
        assert _running(started) == [False]


_MEASURES = """
import time
from repro.launch.messages import Site
from repro.launch.ranks.sites import keep_ranks, open_site
with keep_ranks():
    for _ in range(2):
        with open_site(Site(topology=None, ranks=1, cores=None)) as session:
            print(session._supervisor.pid, flush=True)
    print("resting", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_real_ranks_go_on_and_end_with_who_measures() -> None:
    command = [sys.executable, "-c", _MEASURES]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as measuring:
        assert measuring.stdout is not None
        try:
            first, second, rests = (measuring.stdout.readline().decode() for _ in range(3))
            assert first == second and rests == "resting\n" and _runs(int(first))
        finally:
            measuring.kill()
    wait_until(lambda: not _runs(int(first)))


def _runs(pid: int) -> bool:
    """Whether it is there, and not only for who has not asked how it ended."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
