"""Atomic writes: an output file is complete or absent."""

import errno
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repro.errors import ReproError

_CANNOT_WRITE = {
    # Disk full, quota or file size exceeded.
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    # Read-only file system, no permission.
    *(errno.EROFS, errno.EACCES, errno.EPERM),
    # The folder is a file, or its file system cannot rename, has failed or is gone.
    *(errno.EEXIST, errno.ENOTDIR, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV),
    *(errno.EIO, errno.ESTALE, errno.ENODEV),
}


def temporary_sibling(path: Path) -> Path:
    """Return an unused path in the folder of `path`, so that a rename between the two is atomic.

    Temporary files that killed processes of this host left in the folder are removed.

    Parameters
    ----------
    path
        The final path; its folder is created if it does not exist.

    Returns
    -------
    Path
        A hidden file name that no other process chooses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    for left in path.parent.glob(f".*.{host}-*.*.tmp"):
        _remove_if_left(left)
    return path.with_name(f".{path.name}.{host}-{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _remove_if_left(temporary: Path) -> None:
    """Remove a temporary file or folder of this host whose process has ended."""
    pid = temporary.name.split(".")[-3].rpartition("-")[2]
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)
    except (PermissionError, ValueError):
        return  # another user's process, or another program's file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a temporary file next to `path`, and rename it to `path` when the block succeeds.

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
        The folder cannot be written or the disk is full; an earlier file is unchanged.
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
    """Return the error for a file that could not be replaced."""
    return ReproError(
        f"{path}: cannot be written ({reason}); fix: free disk space or choose another folder, "
        "then run the same command again to resume"
    )


def replace_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
