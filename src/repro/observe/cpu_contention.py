"""CPU contention: other processes, or the host of a virtual machine, that take CPU time."""

import os
import time
from pathlib import Path

_SAMPLE_S = 0.5


def find_cpu_competitor() -> str:
    """Describe the largest CPU user among processes of other sessions and the host of this VM."""
    before, stolen_s, began = _cpu_s(), _stolen_s(), time.monotonic()
    time.sleep(_SAMPLE_S)
    elapsed_s = time.monotonic() - began
    used = {
        pid: (seconds - before[pid][1], name)
        for pid, (name, seconds) in _cpu_s().items()
        if pid in before
    }
    busiest_s, name = max(used.values(), default=(0.0, ""))
    if _stolen_s() - stolen_s > busiest_s:
        return "the host of this virtual machine runs other work"
    return f"{name} uses {busiest_s / elapsed_s:.0%} of a core"


def _stolen_s() -> float:
    """Return the steal time of all cores so far, in seconds; 0 if it is not available."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _cpu_s() -> dict[int, tuple[str, float]]:
    """Return name and CPU seconds of each process of another session, by process id."""
    session, ticks = os.getsid(0), os.sysconf("SC_CLK_TCK")
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if int(fields[3]) != session:
            found[int(path.parent.name)] = (name, (int(fields[11]) + int(fields[12])) / ticks)
    return found
