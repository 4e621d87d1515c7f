"""The CPU share of an emulated GPU: one cgroup per rank, under cgroup v1 or v2."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.errors import ReproError
from repro.testbed.ownership import leftovers, owned_name

# Short periods keep a rank's progress smooth: under the kernel's default of 100 ms a rank computes
# in bursts that are as long as a small model's whole forward pass.
PERIOD_US = 10_000
# What the ranks leave to the network stack and to the sampling of counters.
RESERVED_SHARE = 0.2
_RELEASE_S = 5.0


@dataclass(frozen=True)
class Quotas:
    """CPU quotas of a set of ranks: `cores` each, enforced by the cgroups at `paths`."""

    cores: float
    paths: tuple[Path, ...]


def cores_per_rank(ranks: int) -> float:
    """The quota of each of `ranks` emulated GPUs, in cores of this machine.

    It belongs to an experiment, from the largest number of ranks in it, so that two ranks compute
    as fast as eight.
    """
    share = (1 - RESERVED_SHARE) * usable_cores() / ranks
    return min(1.0, int(share * 1000) / 1000)


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def create_quotas(ranks: int, cores: float) -> Iterator[Quotas]:
    """Create one cgroup per rank with a quota of `cores`; on exit they are removed.

    Cgroups that a killed run left behind are removed first. Ranks join by writing their process id
    to `cgroup.procs`; all of them must have ended before the exit.

    Raises
    ------
    ReproError
        This process may not create cgroups with a CPU controller.
    """
    parent = quota_parent()
    if parent is None:
        raise ReproError(
            "CPU quotas cannot be set: no writable cgroup with the cpu controller; run as root, "
            "or with a delegated cgroup (systemd-run --user --scope -p Delegate=yes)"
        )
    for left in leftovers(parent):
        _remove(left)
    group = parent / owned_name()
    paths = tuple(group / f"rank{rank}" for rank in range(ranks))
    group.mkdir()
    try:
        if _is_v2(parent):
            (group / "cgroup.subtree_control").write_text("+cpu")
        for path in paths:
            path.mkdir()
            _set(path, cores)
        yield Quotas(cores, paths)
    finally:
        _remove(group)


def quota_parent() -> Path | None:
    """The nearest cgroup of this process below which quotas can be set, or None."""
    for mount, version in _mounts():
        own = mount / _own_group(version).lstrip("/")
        candidates = [own, *own.parents] if version == 2 else [own, mount]
        for candidate in candidates:
            if candidate.is_relative_to(mount) and _can_set_quota(candidate, version):
                return candidate
    return None


def _can_set_quota(parent: Path, version: int) -> bool:
    """Whether a child of `parent` gets a working CPU quota; tried, since rights are no proof."""
    probe = parent / f"{owned_name()}-probe"
    try:
        if version == 2:
            if "cpu" not in (parent / "cgroup.controllers").read_text().split():
                return False
            (parent / "cgroup.subtree_control").write_text("+cpu")
        probe.mkdir()
        try:
            _set(probe, 0.5)
        finally:
            probe.rmdir()
    except OSError:
        return False
    return True


def _is_v2(group: Path) -> bool:
    return (group / "cgroup.controllers").exists()


def _set(group: Path, cores: float) -> None:
    quota_us = max(1000, round(cores * PERIOD_US))
    if _is_v2(group):
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def _mounts() -> list[tuple[Path, int]]:
    """Mount points that can carry the cpu controller, cgroup v1 first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup" and "cpu" in options.split(","):
            found.append((Path(fields.split()[4]), 1))
        elif kind == "cgroup2":
            found.append((Path(fields.split()[4]), 2))
    return sorted(found, key=lambda item: item[1])


def _own_group(version: int) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if version == 2 and hierarchy == "0":
            return path
        if version == 1 and "cpu" in controllers.split(","):
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
