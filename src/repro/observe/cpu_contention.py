"""Who else uses this machine: the host of a virtual one, and other processes."""

import os
import time
from pathlib import Path

_LOOK_S = 0.5


def busiest_other() -> str:
    """Who else uses the machine most, of the processes of other sessions than this process's."""
    before, stolen_s, began = _cpu_s(), _stolen_s(), time.monotonic()
    time.sleep(_LOOK_S)
    passed_s = time.monotonic() - began
    used = {
        pid: (seconds - before[pid][1], name)
        for pid, (name, seconds) in _cpu_s().items()
        if pid in before
    }
    busiest_s, name = max(used.values(), default=(0.0, ""))
    if _stolen_s() - stolen_s > busiest_s:
        return "the host of this virtual machine runs other work"
    return f"{name} uses {busiest_s / passed_s:.0%} of a core"


def _stolen_s() -> float:
    """Seconds in which a virtual machine's host let its cores wait so far, all together."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


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
