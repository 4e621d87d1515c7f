"""Fork server, worker pool, and a map over a stream of items in bounded memory."""

import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# Longest Unix socket address, and the part that a fork server appends to the temporary folder.
_ADDRESS_BYTES = 107
_ADDRESS_SUFFIX = "/pymp-xxxxxxxx/listener-xxxxxxxx"


def fork_server(preloaded: list[str]) -> ForkServerContext:
    """Start a server that forks processes in which the given modules are already imported.

    Its socket is in `/tmp` if the temporary folder's name is too long for a socket address, as in
    batch jobs.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(preloaded)
    usual = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir() + _ADDRESS_SUFFIX)) > _ADDRESS_BYTES:
        tempfile.tempdir = "/tmp"
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = usual
    return context


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that ignore SIGINT, and exit when their parent is killed.

    `multiprocessing.Pool` is not used: `Pool.imap` reads its whole input in advance, and waits
    forever when the kernel kills a worker for memory.

    Parameters
    ----------
    workers
        Number of processes.

    Yields
    ------
    ProcessPoolExecutor
        The pool; tasks still queued when the block ends are cancelled.
    """
    pool = ProcessPoolExecutor(workers, initializer=_begin_worker, initargs=(os.getpid(),))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def map_in_order(
    pool: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    in_flight: int,
) -> Iterator[Result]:
    """Apply a function to a stream of items, and yield the results in the items' order.

    Parameters
    ----------
    pool
        Executor that runs the function, which must be picklable for a pool of processes.
    function
        Function of one item.
    items
        Items, read only as far in advance as `in_flight` allows.
    in_flight
        Largest number of items that are queued, running, or finished but not yet yielded.

    Yields
    ------
    Result
        One result for each item.
    """
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) == in_flight:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _begin_worker(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may be dead by now, and `os.getppid` would name the process that adopted this one.
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: int) -> None:
    # A worker that waits for work does not notice that its parent is dead.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
