"""The CPU share of an emulated GPU: one cgroup per rank."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from repro.errors import ReproError
from repro.testbed.cgroups import create_groups, find_parent, is_v2
from repro.testbed.memory import memory_parent

# Short periods keep a rank's progress smooth: under the kernel's default of 100 ms a rank computes
# in bursts that are as long as a small model's whole forward pass.
PERIOD_US = 10_000
# What the ranks leave to the network stack and to the sampling of counters.
RESERVED_SHARE = 0.2


@dataclass(frozen=True)
class Quotas:
    """CPU quotas of a set of ranks, `cores` each.

    `paths` are the cgroups that enforce them; `memory_paths` those whose memory can be limited, the
    same ones under cgroup v2, and none where the kernel offers no memory controller.
    """

    cores: float
    paths: tuple[Path, ...]
    memory_paths: tuple[Path, ...]

    def of_rank(self, rank: int) -> tuple[Path, ...]:
        """The cgroups that a rank has to join."""
        return tuple({*self.paths[rank : rank + 1], *self.memory_paths[rank : rank + 1]})


def cores_per_rank(ranks: int) -> float:
    """The quota of each of `ranks` emulated GPUs, in cores of this machine.

    It belongs to a cluster's experiments, from the largest number of ranks in them, so that two
    ranks compute as fast as eight.
    """
    share = (1 - RESERVED_SHARE) * usable_cores() / ranks
    return min(1.0, int(share * 1000) / 1000)


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


@contextmanager
def create_quotas(ranks: int, cores: float) -> Iterator[Quotas]:
    """Create cgroups of every rank with a quota of `cores`; on exit they are removed.

    All ranks must have ended before the exit.

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
    of_memory = memory_parent()
    # Under v2 a process is in one cgroup, which has to have both controllers.
    shared = of_memory == parent
    with ExitStack() as stack:
        controllers = ("cpu", "memory") if shared else ("cpu",)
        paths = stack.enter_context(create_groups(parent, ranks, controllers))
        memory_paths = paths if shared else []
        if of_memory is not None and not is_v2(of_memory):
            memory_paths = stack.enter_context(create_groups(of_memory, ranks, ("memory",)))
        for path in paths:
            _set(path, cores)
        yield Quotas(cores, tuple(paths), tuple(memory_paths))


def quota_parent() -> Path | None:
    """The nearest cgroup of this process below which quotas can be set, or None."""
    return find_parent("cpu", lambda probe: _set(probe, 0.5))


def _set(group: Path, cores: float) -> None:
    quota_us = max(1000, round(cores * PERIOD_US))
    if is_v2(group):
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))
