"""Exceptions whose messages are written for users."""


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


class DoesNotFit(ReproError):
    """Error that a job does not fit in the memory of its GPUs."""

    exit_status = 3


class NotRunHere(ReproError):
    """Error that one source cannot run on this machine; the message is the reason."""


class ProtocolMissing(NotRunHere):
    """Error that a node lacks the adapter for one protocol; the message is the reason."""
