"""Exceptions whose messages are written for users."""

from collections.abc import Iterator
from contextlib import contextmanager


class ReproError(Exception):
    """Error that the user can fix; its one line names the symptom, the value and the fix.

    The command line ends with `exit_status`.
    """

    exit_status = 1

    def _render_traceback_(self) -> list[str]:
        """Return the one line that Jupyter and papermill show instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def one_line(error: BaseException | str) -> str:
    """Return an error's message without line breaks; empty if it has none."""
    return " ".join(str(error).split())


@contextmanager
def of_file(path: object, fix: str) -> Iterator[None]:
    """Name a file in an error that its content causes, and a fix if the error has none.

    Parameters
    ----------
    path
        The file, with the line if it is known.
    fix
        What the user can do about any error of such a file.
    """
    try:
        yield
    except ReproError as error:
        # Names in a file may have line breaks.
        message = " ".join(str(error).splitlines())
        known = any(sign in message for sign in ("fix: ", "choose from: "))
        raise type(error)(f"{path}: {message}{'' if known else f'; fix: {fix}'}") from None


class DoesNotFit(ReproError):
    """Error that a job does not fit in the memory of its GPUs."""

    exit_status = 3


class NotRunHere(ReproError):
    """Error that one source cannot run on this machine; the message is the reason."""


class ProtocolMissing(NotRunHere):
    """Error that a node lacks the adapter for one protocol; the message is the reason."""
