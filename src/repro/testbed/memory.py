"""The memory of an emulated GPU: a limit of its rank's cgroup, which the kernel enforces by a kill.

Whether a rank that was killed ran out of memory, the cgroup's own counter says.
"""

from pathlib import Path

from repro.testbed.cgroups import find_parent, is_v2

_UNLIMITED_V1, _UNLIMITED_V2 = "-1", "max"


def memory_parent() -> Path | None:
    """The nearest cgroup of this process below which memory can be limited, or None."""
    return find_parent("memory", lambda probe: set_limit(probe, 1 << 30))


def set_limit(group: Path, limit_bytes: int | None) -> None:
    """Limit the memory of a cgroup's processes; None takes a limit away."""
    if is_v2(group):
        text = _UNLIMITED_V2 if limit_bytes is None else str(limit_bytes)
        (group / "memory.max").write_text(text)
        # Without it the kernel would swap instead.
        (group / "memory.swap.max").write_text(_UNLIMITED_V2 if limit_bytes is None else "0")
    else:
        text = _UNLIMITED_V1 if limit_bytes is None else str(limit_bytes)
        (group / "memory.limit_in_bytes").write_text(text)


def used_bytes(group: Path) -> int:
    """Memory that a cgroup's processes hold, without files that the kernel could let go of."""
    resident = {"anon", "kernel"} if is_v2(group) else {"rss"}
    return sum(
        int(value)
        for name, value in _pairs((group / "memory.stat").read_text())
        if name in resident
    )


def kills(group: Path) -> int:
    """How often the kernel has killed a process of a cgroup for want of memory."""
    counters = group / ("memory.events" if is_v2(group) else "memory.oom_control")
    return sum(int(value) for name, value in _pairs(counters.read_text()) if name == "oom_kill")


def _pairs(text: str) -> list[tuple[str, str]]:
    lines = (line.split() for line in text.splitlines())
    return [(words[0], words[1]) for words in lines if len(words) == 2]
