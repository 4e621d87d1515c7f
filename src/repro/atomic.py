"""Outputs that exist whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repro.errors import ReproError

# No space, over a quota or a limit, read-only, not allowed.
_CANNOT_WRITE = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
}


def temporary_sibling(path: Path) -> Path:
    """Name an unused path in the folder of `path`, so that a rename between the two is atomic.

    Parameters
    ----------
    path
        The final path; its folder is made if it does not exist.

    Returns
    -------
    Path
        A hidden name that no other process will choose.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file beside `path` and move it there only once the block has ended well.

    Parameters
    ----------
    path
        The file to create or replace.

    Yields
    ------
    Path
        The temporary path to write; it is removed if the block raises.

    Raises
    ------
    ReproError
        The folder cannot be written or the disk is full; what was there before still is.
    """
    try:
        temporary = temporary_sibling(path)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise cannot_be_written(path, error.strerror) from None


def cannot_be_written(path: Path, reason: object) -> ReproError:
    """The error of a file that could not be replaced."""
    return ReproError(
        f"{path}: cannot be written ({reason}); free space or choose another folder, and the same "
        "command goes on from here"
    )


def replace_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
