"""Processes of this machine: a server that forks them, workers, and a stream mapped over those in
bounded memory."""

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

# What a socket's address may have, and what a fork server's adds to the temporary folder's name.
_ADDRESS_BYTES = 107
_ADDED = "/pymp-xxxxxxxx/listener-xxxxxxxx"


def fork_server(preloaded: list[str]) -> ForkServerContext:
    """Start a server that forks processes from one that has loaded these modules.

    Its socket is under `/tmp` where the temporary folder's name is too long for an address, as
    those of batch jobs may be.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(preloaded)
    usual = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir() + _ADDED)) > _ADDRESS_BYTES:
        tempfile.tempdir = "/tmp"
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = usual
    return context


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that leave Ctrl-C to their parent, and end when it is killed.

    An executor, rather than `multiprocessing.Pool`: `Pool.imap` reads its whole input ahead, and
    waits for ever when a worker is killed for memory.

    Parameters
    ----------
    workers
        Number of processes.

    Yields
    ------
    ProcessPoolExecutor
        The pool. What is still queued when the block ends is dropped.
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
    """Apply `function` to a stream of items, yielding the results in the items' order.

    Parameters
    ----------
    pool
        Where the function runs; it must be picklable for a pool of processes.
    function
        Applied to one item.
    items
        Read only as far ahead as the bound allows.
    in_flight
        Items that may be waiting, at work or finished but not yet yielded.

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
    # A worker whose parent is dead by now would take whoever adopted it for its parent.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    # A worker that waits for work does not see that nobody is left to give any.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
