"""Processes of a pool's ranks, pipes to them, and messages about ranks that fail."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from repro.errors import ReproError
from repro.launch.messages import Failure, Progress, SetLinks, StayBusy, Stop
from repro.launch.ranks.rank import Place, serve
from repro.launch.request import PoolSpec
from repro.processes import fork_server
from repro.results.outcome import OutOfMemory
from repro.testbed.links import Network

# Modules that are loaded once before ranks are forked. Otherwise the first dataset, the first
# optimizer and the first interval would load the last three in each rank, and count as its memory.
PRELOADED = [
    "repro.train.megatron.uncompiled",
    "repro.train.run",
    "repro.train.megatron.groups",
    "megatron.core.datasets.helpers",
    "torch._dynamo",
    "scipy.special",
]
_LOG_LINES = 5
_MESSAGES_S = 1.0


class ClientDisconnected(Exception):
    """The pipe to the user's process closed."""


class RankOutOfMemory(Exception):
    """A rank ran out of memory; the other ranks wait for it."""

    def __init__(self, found: OutOfMemory):
        super().__init__(found.message)
        self.found = found


class RankProcesses:
    """Rank processes of a pool and pipes to them."""

    def __init__(self, pool: PoolSpec, network: Network | None, logs: Path):
        context = fork_server(PRELOADED)
        self._topology, self._cores = pool.topology, pool.cores
        self._logs = [logs / f"rank{rank}.log" for rank in range(pool.ranks)]
        self.pipes: list[Connection] = []
        self.processes: list[ForkServerProcess] = []
        for rank in range(pool.ranks):
            here, there = context.Pipe()
            namespace = f"/proc/{os.getpid()}/fd/{network.gpus[rank].fd}" if network else None
            place = Place(rank, namespace, pool.cores, self._logs[rank])
            process = context.Process(target=serve, args=(place, there))
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    @contextmanager
    def others_busy(self, ranks: int) -> Iterator[None]:
        """Keep all other ranks computing, if ranks emulate GPUs."""
        others = self.pipes[ranks:] if self._cores is not None else []
        for pipe in others:
            pipe.send(StayBusy())
        yield
        for pipe in others:
            pipe.send(Stop())

    def collect(
        self,
        ranks: int,
        user: Connection,
        set_links: Callable[[int, float], None] = lambda *_: None,
    ) -> list[object]:
        """Return an answer of each of the first `ranks` ranks; pass progress on to the user.

        `set_links` sets the links for a request, by its number and the slowdown.

        Raises
        ------
        ReproError
            A rank failed or ended; the message names it, its node, the cause and its log.
        RankOutOfMemory
            A rank ran out of memory.
        ClientDisconnected
            The user's process closed its pipe.
        """
        try:
            return self._collect(ranks, user, set_links)
        except ReproError as error:
            raise (self._cause() or error) from None

    def _collect(
        self, ranks: int, user: Connection, set_links: Callable[[int, float], None]
    ) -> list[object]:
        answers: dict[int, object] = {}
        sentinels = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        pipes: dict[Connection, int] = {self.pipes[rank]: rank for rank in range(ranks)}
        while len(answers) < ranks:
            ready = wait([*pipes, *sentinels, user])
            if user in ready:
                raise ClientDisconnected
            for source in ready:
                if source not in pipes:
                    continue
                answer = self._take(pipes[source])
                if isinstance(answer, Progress):
                    user.send(answer)
                elif isinstance(answer, SetLinks):
                    set_links(answer.number, answer.slowdown)
                    for pipe in pipes:
                        pipe.send(answer)
                else:
                    answers[pipes[source]] = answer
            for source in ready:
                if isinstance(source, int):
                    raise ReproError(self._how_it_ended(sentinels[source]))
        return [answers[rank] for rank in range(ranks)]

    def _take(self, rank: int) -> object:
        try:
            answer = self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(1)
            raise ReproError(self._how_it_ended(rank)) from None
        if isinstance(answer, OutOfMemory):
            raise RankOutOfMemory(answer)
        if isinstance(answer, Failure):
            raise ReproError(f"{self._name(rank)} failed: {answer.message}")
        return answer

    def _cause(self) -> ReproError | None:
        """Return the error of another rank that made the first one fail, if there is one.

        Neighbours of a rank that ran out of memory or was killed lose their connection, and may
        report that first.

        Raises
        ------
        RankOutOfMemory
            Another rank ran out of memory.
        """
        pipes = list(self.pipes)
        until = time.monotonic() + _MESSAGES_S
        while pipes and (left := until - time.monotonic()) > 0:
            for pipe in wait(pipes, left):
                assert isinstance(pipe, Connection)
                rank = self.pipes.index(pipe)
                try:
                    self._take(rank)
                except ReproError as error:
                    if (self.processes[rank].exitcode or 0) < 0:
                        return error
                    pipes.remove(pipe)
        return None

    def _name(self, rank: int) -> str:
        return f"rank {rank} on node {self._topology.node_of(rank) if self._topology else 0}"

    def _how_it_ended(self, rank: int) -> str:
        code = self.processes[rank].exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by the kernel, if memory ran out: see dmesg)"
        else:
            how = f"ended with exit code {code}"
        lines = self._logs[rank].read_text(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
        return f"{self._name(rank)} {how}; its last log lines: {' | '.join(last) or '(none)'}"

    def terminate(self) -> None:
        """Terminate all ranks and wait until they have ended."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
