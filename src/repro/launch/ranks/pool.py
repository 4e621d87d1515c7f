"""Pool of ranks on this machine, started by a supervisor, which runs requests."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import IO

from tqdm import tqdm

from repro.errors import NotRunHere, ReproError
from repro.launch.messages import Failure, Progress, Ready, Waiting
from repro.launch.request import PoolSpec, Request, Work
from repro.results.outcome import Outcome, OutOfMemory
from repro.testbed.ability import ENTER, NOT_LINUX, explain_refusal
from repro.testbed.enter import REFUSED
from repro.train.records import Report

# Time in which a supervisor terminates its ranks.
_END_S = 20.0


@dataclass(frozen=True)
class RankPool:
    """Ranks that have started."""

    spec: PoolSpec
    _pipe: Connection
    _log: IO[bytes]
    _say: Callable[[str], None]
    _supervisor: "subprocess.Popen[bytes]"

    def run(self, request: Request[Work]) -> Outcome | OutOfMemory:
        """Run one request, as `run_interleaved` does."""
        found = self.run_interleaved([request])
        return found if isinstance(found, OutOfMemory) else found[0]

    def run_interleaved(
        self, requests: Sequence[Request[Work]], report: Report = lambda *_: None
    ) -> list[Outcome] | OutOfMemory:
        """Run requests of the same work round robin, each over its own links.

        After a rank ran out of memory, the ranks are new and the pool can still be used.

        Parameters
        ----------
        report
            Function called with the iterations, or cases of a sweep, of all requests done so far.

        Raises
        ------
        ReproError
            A link does not carry its rate, a rank failed or was killed, or the supervisor was. The
            pool cannot be used any more.
        """
        if (count := requests[0].ranks) > self.spec.ranks:
            raise ReproError(f"{count} ranks requested, but the pool has {self.spec.ranks}")
        # Ranks need not load what turns their answers into datasets.
        self._send(tuple(replace(request, dataset=None) for request in requests))
        while True:
            answer = self._receive()
            if isinstance(answer, Progress):
                report(answer.steps, answer.text)
            elif isinstance(answer, list | OutOfMemory):
                return answer

    def _begin(self) -> None:
        self._send(self.spec)
        ready = self._receive()
        assert isinstance(ready, Ready)

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._how_it_ended() from None

    def _receive(self) -> object:
        try:
            while isinstance(answer := self._pipe.recv(), Waiting):
                self._say(answer.text)
        except (EOFError, ConnectionResetError):
            raise self._how_it_ended() from None
        if isinstance(answer, Failure):
            raise NotRunHere(answer.message) if answer.unavailable else ReproError(answer.message)
        return answer

    def _how_it_ended(self) -> ReproError:
        code = self._supervisor.wait(_END_S)
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        if code == REFUSED:
            return NotRunHere(explain_refusal(lines[-1]))
        return ReproError(
            f"the supervisor of the ranks ended with exit code {code}; "
            f"its last line: {lines[-1] if lines else '(none)'}"
        )

    def _end(self) -> None:
        self._pipe.close()
        try:
            self._supervisor.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        self._log.close()


def _to_stderr(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


@contextmanager
def open_pool(spec: PoolSpec, say: Callable[[str], None] = _to_stderr) -> Iterator[RankPool]:
    """Start ranks; when the context ends, nothing of them is left.

    `say` gets a line whenever a check of ranks or links waits for a busy machine.

    Raises
    ------
    NotRunHere
        This machine cannot run the ranks; the message says what is missing and the fix.
    ReproError
        A rank does not keep its pace, or does not work as it should.
    """
    if sys.platform != "linux":
        raise NotRunHere(NOT_LINUX)
    pool = _start(spec, say)
    try:
        pool._begin()
        yield pool
    finally:
        pool._end()


def _start(spec: PoolSpec, say: Callable[[str], None]) -> RankPool:
    """Start a supervisor, which waits for its ranks' specification."""
    ours, theirs = multiprocessing.Pipe()
    log = TemporaryFile()  # noqa: SIM115, the pool closes it
    supervisor = subprocess.Popen(
        [
            *(ENTER if spec.topology is not None else (sys.executable,)),
            *("-m", "repro.launch.ranks.supervisor", str(theirs.fileno())),
        ],
        pass_fds=[theirs.fileno()],
        # In its own session: Ctrl-C reaches the user's process, which closes the pipe.
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    theirs.close()
    return RankPool(spec, ours, log, say, supervisor)
