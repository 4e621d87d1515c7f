"""Names that say which process owns a thing, so that what a killed one left can be told apart."""

import os
from pathlib import Path

_PREFIX = "repro-"
GLOB = f"{_PREFIX}[0-9]*-[0-9]*"


def owned_name() -> str:
    """A name that belongs to this process for good: its id alone may be reused."""
    return f"{_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}"


def is_leftover(name: str) -> bool:
    """Whether the process that owns a name (one that `GLOB` matches) has ended."""
    pid, start = name.removeprefix(_PREFIX).split("-")
    try:
        return _start_ticks(int(pid)) != start
    except OSError:
        return True


def leftovers(folder: Path) -> list[Path]:
    """What ended processes left in a folder."""
    return [path for path in folder.glob(GLOB) if is_leftover(path.name)]


def _start_ticks(pid: int) -> str:
    """A process's start in clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
