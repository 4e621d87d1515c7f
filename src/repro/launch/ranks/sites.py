"""Open a set of ranks from the user's process, and have it carry out orders."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from tempfile import TemporaryFile
from typing import IO

from tqdm import tqdm

from repro.errors import NotRunHere, ReproError
from repro.launch.messages import Failure, Order, Progress, Ready, Site, Waiting, Work
from repro.results.outcome import Outcome, OutOfMemory
from repro.testbed.ability import ENTER, NOT_LINUX, explain_refusal
from repro.testbed.enter import REFUSED
from repro.train.records import Report

_END_S = 20


@dataclass(frozen=True)
class Session:
    """A site whose ranks are up."""

    site: Site
    _pipe: Connection
    _supervisor: "subprocess.Popen[bytes]"
    _log: IO[bytes]
    _say: Callable[[str], None]

    def run(self, order: Order[Work]) -> Outcome | OutOfMemory:
        """Have an order carried out, as `take_turns` does."""
        found = self.take_turns([order])
        return found if isinstance(found, OutOfMemory) else found[0]

    def take_turns(
        self, orders: Sequence[Order[Work]], report: Report = lambda *_: None
    ) -> list[Outcome] | OutOfMemory:
        """Have orders of the same work carried out in turns, each over its own links.

        `report` gets the iterations, or cases, of all of them that are done so far.

        A rank without enough memory is an answer: the ranks are new then, and the session goes on.

        Raises
        ------
        ReproError
            A link does not carry its rate, a rank failed or was killed, or the supervisor was. The
            session cannot be used any more.
        """
        if (wanted := orders[0].ranks) > self.site.ranks:
            raise ReproError(f"{wanted} ranks wanted, but the site has {self.site.ranks}")
        _send(self._pipe, tuple(orders), self._supervisor, self._log)
        while True:
            answer = _hear(self._pipe, self._supervisor, self._log, self._say)
            if isinstance(answer, Progress):
                report(answer.steps, answer.words)
            elif isinstance(answer, list | OutOfMemory):
                return answer


def _to_stderr(words: str) -> None:
    tqdm.write(words, file=sys.stderr)


@contextmanager
def open_site(site: Site, say: Callable[[str], None] = _to_stderr) -> Iterator[Session]:
    """Start the ranks of a site; when the context ends, nothing of them is left.

    `say` gets a line whenever a check of ranks or links waits for a machine that is busy.

    Raises
    ------
    NotRunHere
        This machine cannot run the site; the message says what is missing and the mend.
    ReproError
        A rank does not keep its pace, or does not work as it should.
    """
    if sys.platform != "linux":
        raise NotRunHere(NOT_LINUX)
    ours, theirs = multiprocessing.Pipe()
    with TemporaryFile() as log:
        supervisor = subprocess.Popen(
            [
                *(ENTER if site.topology is not None else (sys.executable,)),
                *("-m", "repro.launch.ranks.supervisor", str(theirs.fileno())),
            ],
            pass_fds=[theirs.fileno()],
            # Of a session of its own: a Ctrl-C is for the user's process, which closes the pipe.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        theirs.close()
        try:
            _send(ours, site, supervisor, log)
            ready = _hear(ours, supervisor, log, say)
            assert isinstance(ready, Ready)
            yield Session(site, ours, supervisor, log, say)
        finally:
            ours.close()
            try:
                supervisor.wait(_END_S)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()


def _send(
    pipe: Connection, message: object, supervisor: "subprocess.Popen[bytes]", log: IO[bytes]
) -> None:
    try:
        pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _lost(supervisor, log) from None


def _hear(
    pipe: Connection,
    supervisor: "subprocess.Popen[bytes]",
    log: IO[bytes],
    say: Callable[[str], None],
) -> object:
    try:
        while isinstance(answer := pipe.recv(), Waiting):
            say(answer.words)
    except (EOFError, ConnectionResetError):
        raise _lost(supervisor, log) from None
    if isinstance(answer, Failure):
        raise NotRunHere(answer.message) if answer.unavailable else ReproError(answer.message)
    return answer


def _lost(supervisor: "subprocess.Popen[bytes]", log: IO[bytes]) -> ReproError:
    code = supervisor.wait(_END_S)
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    if code == REFUSED:
        return NotRunHere(explain_refusal(lines[-1]))
    return ReproError(
        f"the supervisor of the ranks ended with exit code {code}; "
        f"its last line: {lines[-1] if lines else '(none)'}"
    )
