"""Processes and folders of a pool of ranks that could outlive it."""

import tempfile
from pathlib import Path

from waiting import wait_until

from repro.testbed.ownership import GLOB


def descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in read(task).split()
    ]
    return children + [descendant for child in children for descendant in descendants(child)]


def found_by_command(pid: int, part: str) -> list[int]:
    """A process and all it started whose command lines have this part."""
    started = (pid, *descendants(pid))
    return [one for one in started if part in read(Path(f"/proc/{one}/cmdline"))]


def read(path: Path) -> str:
    """A file of /proc; nothing if its process has ended."""
    try:
        return path.read_text().replace("\0", " ")
    except OSError:
        return ""


def left_behind() -> set[str]:
    """Everything a set of ranks creates that can outlive it: processes and folders."""
    temporary = tempfile.gettempdir()
    commands = {
        f"{process.name} {read(process / 'cmdline')[:200]}"
        for process in Path("/proc").glob("[0-9]*")
        if f"TMPDIR={temporary} " in read(process / "environ")
    }
    found = {c for c in commands if "repro.launch.ranks.supervisor" in c or "repro.train.run" in c}
    return found | {str(path) for path in Path(temporary).glob(GLOB)}


def wait_until_clean(before: set[str]) -> None:
    wait_until(lambda: not left_behind() - before, lambda: left_behind() - before)
