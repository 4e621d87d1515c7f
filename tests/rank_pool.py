"""Rank processes for tests: started once, they meet in process groups of every size."""

import gc
import os
import random
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from repro.catalog.models.papers import Family
from repro.launch.ranks.processes import PRELOADED
from repro.processes import fork_server
from repro.testbed.kernel import die_with_parent

_SIZE = 8
_LONGEST_TASK_S = 300


@dataclass(frozen=True)
class _Job:
    task: Callable[..., Any]
    arguments: tuple[Any, ...]
    ranks: int
    port: int
    meeting: int
    """A number for each time that ranks join groups anew."""
    groups: tuple[int, Family, int, int]


@dataclass(frozen=True)
class _Failed:
    reason: str


class RankPool:
    """Up to eight ranks on the loopback, each a process with one thread."""

    def __init__(self) -> None:
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._layout: tuple[object, ...] = ()
        self._port = self._meeting = 0

    def run(
        self,
        task: Callable[..., Any],
        *arguments: Any,
        ranks: int,
        stages: int = 1,
        family: Family = "gpt",
        tensor_parallel: int = 1,
        experts: int = 1,
    ) -> list[Any]:
        """What `task` returns on each rank, called there with the groups joined; `experts` of a
        layer are spread over so many ranks."""
        if not self._processes:
            self._start()
        groups = (stages, family, tensor_parallel, experts)
        # As a run's ranks do, they stay in their groups while these are the same.
        if self._layout != (ranks, groups):
            self._layout, self._port = (ranks, groups), _free_port()
            self._meeting += 1
        for pipe in self._pipes[:ranks]:
            pipe.send(_Job(task, arguments, ranks, self._port, self._meeting, groups))
        return [self._answer(pipe) for pipe in self._pipes[:ranks]]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._layout = [], [], ()

    def _start(self) -> None:
        context = fork_server(PRELOADED)
        for rank in range(_SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _answer(self, pipe: Connection) -> Any:
        answer = pipe.recv() if pipe.poll(_LONGEST_TASK_S) else _Failed("a rank did not answer")
        if isinstance(answer, _Failed):
            # The other ranks wait for it in a collective.
            self.close()
            raise AssertionError(answer.reason)
        return answer


def _free_port() -> int:
    """A port that nobody gets by chance before rank 0 listens there: the kernel gives connections
    those from 32768 on."""
    while True:
        port = random.randrange(16384, 32768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _serve(rank: int, pipe: Connection) -> None:
    import torch

    from repro.train.megatron.groups import join_groups, leave_groups
    from repro.train.run import device_scope

    # Of a killed test run no rank is left in a collective.
    die_with_parent(signal.SIGKILL)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    torch.set_num_threads(1)
    # As ranks of a run do: what was loaded before the fork is never garbage.
    gc.freeze()
    joined = 0
    while True:
        try:
            job: _Job = pipe.recv()
        except EOFError:
            return
        try:
            with device_scope():
                if joined != job.meeting:
                    if joined:
                        leave_groups()
                    join_groups(rank, job.ranks, "127.0.0.1", job.port, *job.groups)
                    joined = job.meeting
                answer = job.task(*job.arguments)
        except Exception:
            answer = _Failed(f"rank {rank}: {traceback.format_exc()}")
        pipe.send(answer)
