"""System calls of namespaces and processes that Python lacks; nothing else is imported here."""

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)


def unshare(flags: int) -> None:
    """Leave the calling thread's namespaces for new ones (unshare(2))."""
    _check(_libc.unshare(flags), "unshare")


def enter_network(namespace_fd: int) -> None:
    """Move the calling thread into a network namespace (setns(2))."""
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "setns")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel signal this process when its parent ends, however it ends (prctl(2)).

    Only Linux does so.
    """
    if sys.platform == "linux":
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")
