"""Worker processes: the bound on items in flight, and the exit after their parent."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import PATIENCE_S

from repro.processes import map_in_order, process_pool

# The worker begins when its parent is dead.
_KILLED = """
import os, signal, time
from repro import processes
begin = processes._begin_worker
def late(*arguments):
    time.sleep(1)
    begin(*arguments)
processes._begin_worker = late
with processes.process_pool(1) as pool:
    pool.submit(abs, 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


_IN_BACKGROUND = """
import os
from pathlib import Path
from repro.launch.request import PoolSpec
from repro.launch.ranks.pool import open_pool
from repro.background import run_in_background
run_in_background()
with open_pool(PoolSpec(topology=None, ranks=1, cores=None)) as session:
    for pid in (os.getpid(), session._supervisor.pid):
        share = Path(f"/proc/{pid}/autogroup")
        idle = os.sched_getscheduler(pid) == os.SCHED_IDLE
        print(os.getsid(pid) == pid, idle, share.read_text().split()[-1] if share.exists() else 19)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have nice values only")
def test_ranks_of_a_background_process_are_background_sessions() -> None:
    result = subprocess.run([sys.executable, "-c", _IN_BACKGROUND], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["True True 19"] * 2, result.stderr


def test_no_more_items_are_in_flight_than_the_bound() -> None:
    read = done = highest = 0

    def counted() -> Iterator[int]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield number

    with process_pool(2) as pool:
        for number in map_in_order(pool, abs, counted(), in_flight=32):
            highest = max(highest, read - done)
            assert number == done
            done += 1
    assert done == read == 1000
    assert highest == 32


def test_results_keep_their_order_if_the_first_takes_longest() -> None:
    def slow_start(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0)
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(map_in_order(pool, slow_start, range(50), in_flight=4)) == list(range(50))


def test_a_worker_ends_if_its_parent_died_before_it_began() -> None:
    # A living worker would keep the pipe open.
    subprocess.run([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, timeout=PATIENCE_S)
