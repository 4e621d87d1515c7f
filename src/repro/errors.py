"""The exceptions a user is meant to read."""


class ReproError(Exception):
    """An error the user can mend: one line that names the thing, its value and the mend."""

    def _render_traceback_(self) -> list[str]:
        """What Jupyter and papermill show instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


def one_line(error: BaseException | str) -> str:
    """An error's own words without their line breaks; empty if it has none."""
    return " ".join(str(error).split())


class NotRunHere(ReproError):
    """This machine cannot run a source at all; others can. The message is the reason."""


class ProtocolMissing(NotRunHere):
    """A node has nothing with which to use one protocol; others may work. The message says why."""
