"""Who else uses this machine: the host of a virtual one, and other processes."""

import os
import time
from pathlib import Path

_LOOK_S = 0.5


def stolen_s() -> float:
    """Seconds in which a virtual machine's host let the usable cores wait so far, per core."""
    usable: set[int] = getattr(os, "sched_getaffinity", lambda _: set())(0)
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    fields = (line.split() for line in lines if line.startswith("cpu"))
    stolen = [int(one[8]) for one in fields if one[0][3:].isdigit() and int(one[0][3:]) in usable]
    return sum(stolen) / os.sysconf("SC_CLK_TCK") / max(1, len(usable))


def busiest_other() -> str:
    """Who else uses the machine most, of the processes of other sessions than this process's."""
    before, stolen, began = _cpu_s(), stolen_s(), time.monotonic()
    time.sleep(_LOOK_S)
    passed = time.monotonic() - began
    used = {
        pid: (seconds - before[pid][1], name)
        for pid, (name, seconds) in _cpu_s().items()
        if pid in before
    }
    busiest, name = max(used.values(), default=(0.0, ""))
    if stolen_s() - stolen > busiest / max(1, os.cpu_count() or 1):
        return "the host of this virtual machine runs other work"
    return f"{name} uses {busiest / passed:.0%} of a core"


def _cpu_s() -> dict[int, tuple[str, float]]:
    """Names and CPU time of all processes that are not of this session."""
    own, ticks = os.getsid(0), os.sysconf("SC_CLK_TCK")
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if int(fields[3]) != own:
            found[int(path.parent.name)] = (name, (int(fields[11]) + int(fields[12])) / ticks)
    return found
