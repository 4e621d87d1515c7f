"""Ranks that are up between the stages of a pipeline: what one leaves, the next one takes.

Who measures holds a pipe to the supervisor of its ranks, which ends when the pipe closes. Here the
pipeline holds the pipe while nobody measures, of one site at a time: ranks end when it does,
however that is, and a process that dies while it measures takes its ranks along.
"""

import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import IO

from repro.giving_way import gives_way
from repro.launch.messages import Site
from repro.observe.environment import sources_digest
from repro.testbed.ownership import owned_folder

# Where stages find what is kept.
_FOLDER = "REPRO_RANKS"
_TAKE, _KEEP, _END = b"T", b"K", b"E"
_KEY_BYTES = 32
# What a supervisor gets to bury its ranks.
END_S = 20.0


@contextmanager
def keep_ranks() -> Iterator[Mapping[str, str]]:
    """Keep ranks between processes with this environment; when the context ends, none are left."""
    if sys.platform != "linux":
        yield {}
        return
    with owned_folder() as folder, socket.socket(socket.AF_UNIX) as listening:
        with _address_in(folder) as address:
            listening.bind(address)
        listening.listen()
        thread = Thread(target=_serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield {_FOLDER: str(folder)}
        finally:
            with _asked(folder, _END):
                thread.join()


def take(site: Site) -> tuple[Connection, IO[bytes]] | None:
    """The pipe to ranks of this site that are kept, and what their supervisor writes into."""
    handles: list[int] = []
    if (folder := _folder()) is None:
        return None
    # A pipeline that was killed keeps nothing.
    with suppress(OSError), _asked(folder, _TAKE + _key(site)) as asking:
        _, handles, _, _ = socket.recv_fds(asking, 1, 2)
    if not handles:
        return None
    pipe, log = Connection(handles[0]), os.fdopen(handles[1], "r+b")
    # Who rests says nothing, but for the end of what was killed.
    if pipe.poll():
        pipe.close()
        log.close()
        return None
    return pipe, log


def keep(site: Site, pipe: Connection, log: IO[bytes]) -> bool:
    """Leave ranks of this site, which rest, to who comes next; whether somebody keeps them."""
    if (folder := _folder()) is None or pipe.poll():
        return False
    handles = pipe.fileno(), log.fileno()
    with suppress(OSError), _asked(folder, _KEEP + _key(site), *handles) as asking:
        return asking.recv(1) == _KEEP
    return False


def end(pipe: int) -> None:
    """Tell a supervisor through its pipe to end, and wait until it has: what starts now would be
    disturbed by its ranks."""
    with socket.socket(fileno=os.dup(pipe)) as speaking, suppress(OSError):
        speaking.shutdown(socket.SHUT_WR)
        speaking.settimeout(END_S)
        while speaking.recv(1 << 16):
            pass


def _folder() -> Path | None:
    # What gives way starts ranks that do so too, and cannot stop.
    folder = None if gives_way() else os.environ.get(_FOLDER)
    return Path(folder) if folder else None


@contextmanager
def _address_in(folder: Path) -> Iterator[str]:
    """A socket's address there: none may have more than a hundred characters, as folders do."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/ranks"
    finally:
        os.close(handle)


def _key(site: Site) -> bytes:
    """Ranks go on with the code that they were started with."""
    return hashlib.sha256(f"{site} {sources_digest()}".encode()).digest()


@contextmanager
def _asked(folder: Path, message: bytes, *handles: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as asking:
        with _address_in(folder) as address:
            asking.connect(address)
        socket.send_fds(asking, [message], handles)
        yield asking


def _serve(listening: socket.socket) -> None:
    """Keep what was left last, until asked to end."""
    key, handles = b"", list[int]()
    kind = b""
    while kind != _END:
        asking, _ = listening.accept()
        with asking:
            message, given, _, _ = socket.recv_fds(asking, 1 + _KEY_BYTES, 2)
            kind, asked = message[:1], message[1:]
            # Who asks may be killed at any time.
            with suppress(OSError):
                if kind == _TAKE and asked == key:
                    socket.send_fds(asking, [kind], handles)
                else:
                    for pipe in handles[:1]:
                        end(pipe)
                    asking.sendall(kind)
            for handle in handles:
                os.close(handle)
            key, handles = (asked, given) if kind == _KEEP else (b"", [])
