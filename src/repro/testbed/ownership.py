"""Names of temporary files by their owner process, which show leftovers of killed processes."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "repro-"
GLOB = f"{_PREFIX}[0-9]*-[0-9]*"


def owned_name() -> str:
    """Return a name that no other process ever has: a process id alone may be reused."""
    return f"{_PREFIX}{os.getpid()}-{_start_ticks(os.getpid())}"


def is_leftover(name: str) -> bool:
    """Test whether the process that owns a name (one that `GLOB` matches) has ended."""
    pid, start, *_ = name.removeprefix(_PREFIX).split("-")
    try:
        return _start_ticks(int(pid)) != start
    except OSError:
        return True


def leftovers(folder: Path) -> list[Path]:
    """Return the paths that ended processes left in a folder."""
    return [path for path in folder.glob(GLOB) if is_leftover(path.name)]


@contextmanager
def owned_folder() -> Iterator[Path]:
    """Create a temporary folder of this process, and remove those of ended processes."""
    parent = Path(tempfile.gettempdir())
    for folder in leftovers(parent):
        shutil.rmtree(folder, ignore_errors=True)
    # Its name cannot be guessed, and only its user may enter it.
    folder = Path(tempfile.mkdtemp(prefix=f"{owned_name()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start_ticks(pid: int) -> str:
    """Return a process's start in clock ticks since boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
