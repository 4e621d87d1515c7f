"""Let all else on this machine go first; run as a program, or by a notebook's kernel, at once."""

import os
import sys
import time
from pathlib import Path


def run_in_background() -> None:
    """Have all else on this machine go first, before this process and those it starts.

    A kernel may share cores among sessions before it looks at who gives way within one (sched(7),
    autogroup): there the process leads a session with the smallest share. Sessions that it begins
    have a share of their own again, and have to give way themselves.
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
        except BlockingIOError:  # one process in a tenth of a second may
            time.sleep(0.1)


def is_background() -> bool:
    """Whether this process, or who started it, gave way."""
    return sys.platform == "linux" and os.sched_getscheduler(0) == os.SCHED_IDLE


if __name__ == "__main__":
    run_in_background()
