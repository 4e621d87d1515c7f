"""Memory limits: that the kernel enforces them, that a kill is counted, and that they go away."""

import subprocess
import sys
from pathlib import Path

import pytest

from repro.testbed.memory import kills, memory_parent, set_limit, used_bytes
from repro.testbed.quota import create_quotas

pytestmark = pytest.mark.skipif(memory_parent() is None, reason="no memory controller here")

_MEBIBYTE = 1 << 20
_TAKE = (
    "import os, sys\nfrom pathlib import Path\n"
    "for group in sys.argv[2:]:\n"
    "    Path(group, 'cgroup.procs').write_text(str(os.getpid()))\n"
    "taken = b'x' * int(sys.argv[1])\n"
    "print('took', flush=True)\nsys.stdin.read()\n"
)


def _take(size: int, groups: tuple[Path, ...]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _TAKE, str(size), *map(str, groups)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_who_takes_more_than_the_limit_is_killed_and_counted() -> None:
    with create_quotas(2, 0.5) as quotas:
        for group in quotas.memory_paths:
            set_limit(group, 40 * _MEBIBYTE)
        modest = _take(10 * _MEBIBYTE, quotas.of_rank(0))
        greedy = _take(80 * _MEBIBYTE, quotas.of_rank(1))
        greedy.communicate(timeout=60)
        modest.communicate(timeout=60)
        assert (modest.returncode, greedy.returncode) == (0, -9)
        assert [kills(group) for group in quotas.memory_paths] == [0, 1]


def test_a_limit_can_be_taken_away() -> None:
    with create_quotas(1, 0.5) as quotas:
        (group,) = quotas.memory_paths
        set_limit(group, 40 * _MEBIBYTE)
        set_limit(group, None)
        greedy = _take(80 * _MEBIBYTE, quotas.of_rank(0))
        greedy.communicate(timeout=60)
        assert greedy.returncode == 0


def test_what_a_rank_holds_is_seen() -> None:
    with create_quotas(1, 0.5) as quotas:
        (group,) = quotas.memory_paths
        process = _take(80 * _MEBIBYTE, quotas.of_rank(0))
        assert process.stdout is not None
        assert process.stdout.readline() == "took\n"
        assert 80 * _MEBIBYTE <= used_bytes(group) < 110 * _MEBIBYTE
        process.communicate(timeout=60)


def test_no_group_is_left() -> None:
    with create_quotas(1, 0.5) as quotas:
        (group,) = quotas.memory_paths
        assert group.exists()
    assert not group.parent.exists()
