"""Process of one rank: enter its namespace, then serve the supervisor until the pipe closes."""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from repro.collectives.records import CollectiveSweep
from repro.errors import one_line
from repro.launch.messages import (
    Failure,
    Join,
    MeasurePasses,
    Progress,
    SetLinks,
    StayBusy,
)
from repro.launch.request import groups_of
from repro.observe.interleaving import InterleavedRuns
from repro.observe.nic import own_interface_bytes
from repro.results.outcome import OutOfMemory
from repro.testbed.kernel import die_with_parent, enter_network
from repro.testbed.links import UPLINK
from repro.testbed.speed import Passes
from repro.train.records import EmulatedGpu, Report

_LONGEST_REASON = 400
_NO_MEMORY = ("can't allocate memory", "out of memory", "cublas_status_alloc_failed")
# A product of such matrices takes 0.1 ms and a pass 4 ms; waking up takes 1 or 2 % of that.
_BUSY_SIZE = 256
_PRODUCTS = 40
_CHECKED_PASSES = 5


@dataclass(frozen=True)
class Place:
    """Network namespace of a rank (None: the present one), and its log file.

    `cores` is its CPU share; None: it runs at full speed.
    """

    rank: int
    namespace: str | None
    cores: float | None
    log: Path


def serve(place: Place, supervisor: Connection) -> None:
    """Run one rank; the target of its process."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    if place.namespace is not None:
        namespace = os.open(place.namespace, os.O_RDONLY)
        enter_network(namespace)
        os.close(namespace)
    try:
        _serve(place, supervisor)
    except EOFError:
        pass
    except BaseException as error:
        traceback.print_exc()
        supervisor.send(failure_of(place.rank, error))
        sys.stderr.flush()
        os._exit(1)
    # Process groups and Megatron's writers have threads and children that would outlive an orderly
    # interpreter shutdown by seconds.
    os._exit(0)


def failure_of(rank: int, error: BaseException) -> Failure | OutOfMemory:
    """Return the message about the exception that ends a rank.

    A GPU that is out of memory raises torch's own exception. The CPU's allocator has none, and
    neither have libraries with their own allocators.
    """
    reason = f"{type(error).__name__}: {one_line(error)[:_LONGEST_REASON]}"
    name = type(error).__name__
    if name in ("OutOfMemoryError", "MemoryError") or any(
        text in str(error).lower() for text in _NO_MEMORY
    ):
        return OutOfMemory(rank, reason)
    return Failure(reason)


def _serve(place: Place, supervisor: Connection) -> None:
    # Loaded by the fork server already; imported here so that only rank processes need torch.
    import torch

    from repro.collectives.sweep import sweep
    from repro.observe.memory import trim_heap
    from repro.train.megatron.groups import join_groups, leave_groups
    from repro.train.run import device_scope, train

    torch.set_num_threads(1)
    # Collecting garbage among what was loaded before the fork would stop a rank for seconds.
    gc.freeze()
    joined: tuple[str, int] | None = None
    while True:
        message = supervisor.recv()
        if isinstance(message, MeasurePasses):
            supervisor.send(measure_passes(place.cores or 1.0))
        elif isinstance(message, StayBusy):
            stay_busy(supervisor, place.cores or 1.0)
        elif isinstance(message, Join):
            address = (message.address, message.port)
            if joined != address:
                with device_scope():
                    if joined is not None:
                        leave_groups()
                    join_groups(
                        place.rank,
                        message.ranks,
                        message.address,
                        message.port,
                        *groups_of(message.run),
                    )
                joined = address
            report: Report = (
                (lambda done, text: supervisor.send(Progress(done, text)))
                if place.rank == 0
                else (lambda *_: None)
            )
            set_links = partial(_set_links, place.rank, supervisor)
            runs = InterleavedRuns(message.interleaved, set_links)
            # Memory of the run before would count as this one's.
            gc.collect()
            trim_heap()
            if isinstance(message.run, CollectiveSweep):
                # Other processes use the loopback too.
                own = partial(own_interface_bytes, UPLINK) if place.namespace else None
                with device_scope():
                    supervisor.send(sweep(message.run, own, report, runs))
            else:
                gpu = EmulatedGpu(place.cores, message.memory_bytes, message.passes_s)
                run, scratch, microbatches = message.run, message.scratch, message.microbatches
                supervisor.send(train(run, scratch, report, gpu, runs, microbatches))


def _set_links(rank: int, supervisor: Connection, number: int, slowdown: float) -> None:
    if rank == 0:
        supervisor.send(SetLinks(number, slowdown))
    confirmed = supervisor.recv()
    assert confirmed == SetLinks(number, slowdown), confirmed


def stay_busy(supervisor: Connection, cores: float) -> None:
    """Compute as training does, until a message arrives or the pipe closes."""
    compute = _passes(cores)
    while not supervisor.poll():
        next(compute)


def measure_passes(cores: float) -> Passes:
    """Measure the wall and CPU times of some paced passes of the same work."""
    compute = _passes(cores)
    wall_s, cpu_s = zip(*(next(compute) for _ in range(_CHECKED_PASSES)), strict=True)
    return Passes(wall_s, cpu_s)


def _passes(cores: float) -> Iterator[tuple[float, float]]:
    """Run paced passes of the same work, and yield the wall and CPU time of each."""
    import torch

    from repro.train.pacing import Pace

    work, pace = torch.rand(_BUSY_SIZE, _BUSY_SIZE), Pace(cores)
    # With any share they take equally long.
    products = max(1, round(_PRODUCTS * cores))
    while True:
        pace.begin()
        for _ in range(products):
            work @ work
        yield pace.end()
