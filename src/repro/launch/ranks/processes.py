"""The processes of a site's ranks, the pipes to them, and what is said of one that fails."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from repro.errors import ReproError
from repro.launch.messages import BeginTurn, Failure, Progress, Rest, Site, StayBusy
from repro.launch.ranks.rank import Place, serve
from repro.processes import fork_server
from repro.results.outcome import OutOfMemory
from repro.testbed.links import Network

# What ranks use, loaded once before they are forked; the last two are loaded by the first dataset
# and the first optimizer, in each rank for itself.
PRELOADED = [
    "repro.train.megatron.uncompiled",
    "repro.train.run",
    "repro.train.megatron.groups",
    "megatron.core.datasets.helpers",
    "torch._dynamo",
]
_LOG_LINES = 5
_LAST_WORDS_S = 1.0


class UserGone(Exception):
    """The pipe to the user's process closed."""


class RankOutOfMemory(Exception):
    """A rank's memory was not enough; the other ranks wait for it in vain."""

    def __init__(self, found: OutOfMemory):
        super().__init__(found.message)
        self.found = found


class RankProcesses:
    """The rank processes of a site and the pipes to them."""

    def __init__(self, site: Site, network: Network | None, logs: Path):
        context = fork_server(PRELOADED)
        self._topology, self._cores = site.topology, site.cores
        self._logs = [logs / f"rank{rank}.log" for rank in range(site.ranks)]
        self.pipes: list[Connection] = []
        self.processes: list[ForkServerProcess] = []
        for rank in range(site.ranks):
            here, there = context.Pipe()
            namespace = f"/proc/{os.getpid()}/fd/{network.gpus[rank].fd}" if network else None
            place = Place(rank, namespace, site.cores, self._logs[rank])
            process = context.Process(target=serve, args=(place, there))
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    @contextmanager
    def others_busy(self, ranks: int) -> Iterator[None]:
        """Have all but the first `ranks` ranks compute as well, where they emulate GPUs."""
        others = self.pipes[ranks:] if self._cores is not None else []
        for pipe in others:
            pipe.send(StayBusy())
        yield
        for pipe in others:
            pipe.send(Rest())

    def collect(
        self,
        ranks: int,
        user: Connection,
        set_links: Callable[[int, float], None] = lambda *_: None,
    ) -> list[object]:
        """One answer of each of the first `ranks` ranks, progress passed on to the user.

        `set_links` gives links the rates of a turn, so many times slower, before it begins.

        Raises
        ------
        ReproError
            A rank failed or ended; the message says which, where and how, with its last words.
        RankOutOfMemory
            The reason was memory.
        UserGone
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
                raise UserGone
            for source in ready:
                if source not in pipes:
                    continue
                answer = self._take(pipes[source])
                if isinstance(answer, Progress):
                    user.send(answer)
                elif isinstance(answer, BeginTurn):
                    set_links(answer.turn, answer.slower)
                    for pipe in pipes:
                        pipe.send(answer)
                else:
                    answers[pipes[source]] = answer
            for source in ready:
                if isinstance(source, int):
                    raise ReproError(self._obituary(sentinels[source]))
        return [answers[rank] for rank in range(ranks)]

    def _take(self, rank: int) -> object:
        try:
            answer = self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(1)
            raise ReproError(self._obituary(rank)) from None
        if isinstance(answer, OutOfMemory):
            raise RankOutOfMemory(answer)
        if isinstance(answer, Failure):
            raise ReproError(f"{self._name(rank)} failed: {answer.message}")
        return answer

    def _cause(self) -> ReproError | None:
        """The end of another rank, if that is why the first rank to complain failed.

        Neighbours lose their connection to a rank that ran out of memory or was killed, and may say
        so before that is known.

        Raises
        ------
        RankOutOfMemory
            That is the reason.
        """
        speaking = list(self.pipes)
        until = time.monotonic() + _LAST_WORDS_S
        while speaking and (left := until - time.monotonic()) > 0:
            for pipe in wait(speaking, left):
                assert isinstance(pipe, Connection)
                rank = self.pipes.index(pipe)
                try:
                    self._take(rank)
                except ReproError as error:
                    if (self.processes[rank].exitcode or 0) < 0:
                        return error
                    speaking.remove(pipe)
        return None

    def _name(self, rank: int) -> str:
        return f"rank {rank} on node {self._topology.node_of(rank) if self._topology else 0}"

    def _obituary(self, rank: int) -> str:
        code = self.processes[rank].exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (by the kernel, if memory ran out: see dmesg)"
        else:
            how = f"ended with exit code {code}"
        lines = self._logs[rank].read_text(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()][-_LOG_LINES:]
        return f"{self._name(rank)} {how}; its last log lines: {' | '.join(words) or '(none)'}"

    def bury(self) -> None:
        """End all ranks and wait until they have."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
