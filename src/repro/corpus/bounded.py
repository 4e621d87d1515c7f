"""Map a function over an endless stream with several processes and bounded memory."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    pool = ProcessPoolExecutor(workers, initializer=_begin_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def map_in_order(
    pool: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    chunk_items: int,
    chunks_in_flight: int,
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
    chunk_items
        Items sent to a worker at once, to save round trips.
    chunks_in_flight
        Chunks that may be waiting, at work or finished but not yet yielded. At most
        `chunk_items * chunks_in_flight` items have been read and not yet been followed by a
        result.

    Yields
    ------
    Result
        One result for each item.
    """
    stream = iter(items)
    pending: deque[Future[list[Result]]] = deque()
    while chunk := list(islice(stream, chunk_items)):
        pending.append(pool.submit(_apply, function, chunk))
        if len(pending) == chunks_in_flight:
            yield from pending.popleft().result()
    while pending:
        yield from pending.popleft().result()


def _apply(function: Callable[[Item], Result], chunk: list[Item]) -> list[Result]:
    return [function(item) for item in chunk]


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    # A worker that waits for work does not see that nobody is left to give any.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
