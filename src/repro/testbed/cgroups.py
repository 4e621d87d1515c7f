"""Control groups of ranks: under cgroup v1 a tree per controller, under v2 one tree."""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from repro.testbed.ownership import leftovers, owned_name

_RELEASE_S = 5.0


def find_parent(controller: str, try_out: Callable[[Path], None]) -> Path | None:
    """The nearest cgroup of this process below which a controller works, or None.

    `try_out` sets something in a new child, and raises OSError if it cannot: rights are no proof.
    """
    for mount, version in _mounts(controller):
        own = mount / _own_group(controller, version).lstrip("/")
        candidates = [own, *own.parents] if version == 2 else [own, mount]
        for candidate in candidates:
            if candidate.is_relative_to(mount) and _works(candidate, controller, try_out):
                return candidate
    return None


@contextmanager
def create_groups(parent: Path, ranks: int, controllers: tuple[str, ...]) -> Iterator[list[Path]]:
    """Create one cgroup per rank below `parent`; on exit they are removed.

    Cgroups that a killed run left behind are removed first. Ranks join by writing their process id
    to `cgroup.procs`; all of them must have ended before the exit.
    """
    for left in leftovers(parent):
        _remove(left)
    group = parent / owned_name()
    with ExitStack() as stack:
        group.mkdir()
        stack.callback(_remove, group)
        if is_v2(parent):
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
        paths = [group / f"rank{rank}" for rank in range(ranks)]
        for path in paths:
            path.mkdir()
        yield paths


def is_v2(group: Path) -> bool:
    """Whether a cgroup is of version 2."""
    return (group / "cgroup.controllers").exists()


def _works(parent: Path, controller: str, try_out: Callable[[Path], None]) -> bool:
    probe = parent / f"{owned_name()}-probe"
    try:
        if is_v2(parent):
            if controller not in (parent / "cgroup.controllers").read_text().split():
                return False
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        probe.mkdir()
        try:
            try_out(probe)
        finally:
            probe.rmdir()
    except OSError:
        return False
    return True


def _mounts(controller: str) -> list[tuple[Path, int]]:
    """Mount points that can carry a controller, cgroup v1 first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup" and controller in options.split(","):
            found.append((Path(fields.split()[4]), 1))
        elif kind == "cgroup2":
            found.append((Path(fields.split()[4]), 2))
    return sorted(found, key=lambda item: item[1])


def _own_group(controller: str, version: int) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if version == 2 and hierarchy == "0":
            return path
        if version == 1 and controller in controllers.split(","):
            return path
    return "/"


def _remove(group: Path) -> None:
    """Remove a cgroup and its children; the kernel needs a moment to let go of ended processes."""
    deadline = time.monotonic() + _RELEASE_S
    for directory in (*group.glob("*/"), group):
        while True:
            try:
                directory.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno == errno.EBUSY and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                raise
            break
