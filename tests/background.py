"""Idle priority (SCHED_IDLE) for processes that must not disturb measurements.

Run as a program, or as a Jupyter startup script, this module lowers its own process.
"""

import os
import sys
import time
from pathlib import Path


def run_in_background() -> None:
    """Lower this process and its future children to idle priority.

    The kernel may share cores among sessions before it compares priorities within one (sched(7),
    autogroup). There the process becomes the leader of a session with the lowest weight. A session
    that a child starts has its own weight, so the child must call this function again.
    """
    if sys.platform != "linux":
        os.nice(19)
        return
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    autogroup = Path("/proc/self/autogroup")
    if not autogroup.exists():
        return
    if os.getsid(0) != os.getpid():
        os.setsid()
    while True:
        try:
            autogroup.write_text("19")
            return
        except BlockingIOError:  # The kernel allows one such write per 0.1 s.
            time.sleep(0.1)


if __name__ == "__main__":
    run_in_background()
