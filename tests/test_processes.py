"""Worker processes: the bound on items in flight, and the exit after their parent."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
