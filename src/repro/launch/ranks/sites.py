"""Open a set of ranks from the user's process, and have it carry out orders."""

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
from repro.launch.messages import Failure, Order, Progress, Ready, Site, Waiting, Work
from repro.results.outcome import Outcome, OutOfMemory
from repro.testbed.ability import ENTER, NOT_LINUX, explain_refusal
from repro.testbed.enter import REFUSED
from repro.train.records import Report

# What a supervisor gets to bury its ranks.
_END_S = 20.0
# The session whose ranks were left last; None where nobody keeps any.
_resting: "list[Session] | None" = None


@dataclass(frozen=True)
class Session:
    """A site whose ranks are up."""

    site: Site
    _pipe: Connection
    _log: IO[bytes]
    _say: Callable[[str], None]
    _supervisor: "subprocess.Popen[bytes]"

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
        self._send(tuple(orders))
        while True:
            answer = self._hear()
            if isinstance(answer, Progress):
                report(answer.steps, answer.words)
            elif isinstance(answer, list | OutOfMemory):
                return answer

    def _begin(self) -> None:
        """Have its supervisor start the ranks, and wait for them."""
        self._send(self.site)
        ready = self._hear()
        assert isinstance(ready, Ready)

    def _send(self, message: object) -> None:
        try:
            self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._lost() from None

    def _hear(self) -> object:
        try:
            while isinstance(answer := self._pipe.recv(), Waiting):
                self._say(answer.words)
        except (EOFError, ConnectionResetError):
            raise self._lost() from None
        if isinstance(answer, Failure):
            raise NotRunHere(answer.message) if answer.unavailable else ReproError(answer.message)
        return answer

    def _lost(self) -> ReproError:
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

    def _rests(self) -> bool:
        """Who rests says nothing, but for the end of what was killed."""
        return not self._pipe.poll()

    def _end(self) -> None:
        self._pipe.close()
        try:
            self._supervisor.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        self._log.close()


def _to_stderr(words: str) -> None:
    tqdm.write(words, file=sys.stderr)


@contextmanager
def keep_ranks() -> Iterator[None]:
    """Until the context ends, ranks that are left stay up for who opens the same site next."""
    global _resting
    _resting = []
    try:
        yield
    finally:
        for session in _resting:
            session._end()
        _resting = None


@contextmanager
def open_site(site: Site, say: Callable[[str], None] = _to_stderr) -> Iterator[Session]:
    """Start the ranks of a site, or take those that rest (`keep_ranks`); when the context ends,
    nothing of them is left, unless they are kept.

    `say` gets a line whenever a check of ranks or links waits for a machine that is busy.

    Raises
    ------
    NotRunHere
        This machine cannot run the site; the message says what is missing and the fix.
    ReproError
        A rank does not keep its pace, or does not work as it should.
    """
    if sys.platform != "linux":
        raise NotRunHere(NOT_LINUX)
    taken = _taken(site, say)
    session = taken or _start(site, say)
    left = False
    try:
        if not taken:
            session._begin()
        yield session
        left = True
    finally:
        if left and _resting is not None and session._rests():
            _resting.append(session)
        else:
            session._end()


def _taken(site: Site, say: Callable[[str], None]) -> Session | None:
    """A session whose ranks rest; others end, not to be in the way of those that start now."""
    while _resting:
        session = _resting.pop()
        if session.site == site and session._rests():
            return replace(session, _say=say)
        session._end()
    return None


def _start(site: Site, say: Callable[[str], None]) -> Session:
    """A supervisor that waits for its site."""
    ours, theirs = multiprocessing.Pipe()
    log = TemporaryFile()  # noqa: SIM115, the session closes it
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
    return Session(site, ours, log, say, supervisor)
