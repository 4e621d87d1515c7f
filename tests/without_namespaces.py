"""Run a command as a container without privileges would: the kernel refuses it new namespaces.

    python tests/without_namespaces.py make repro

A seccomp filter, as Docker's default one, answers unshare(2) with EPERM; not even root passes it.
"""

import ctypes
import errno
import os
import platform
import sys
from collections.abc import Sequence

_UNSHARE = {"x86_64": 272, "aarch64": 97}
RENAMES = {"x86_64": (82, 264, 316), "aarch64": (38, 276)}[platform.machine()]
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 24, 1, 2
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_SECCOMP_RET_ERRNO, _SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000


class _Instruction(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("operand", ctypes.c_uint32),
    ]


class _Program(ctypes.Structure):
    _fields_ = [
        ("length", ctypes.c_uint16),
        ("instructions", ctypes.POINTER(_Instruction)),
    ]


def forbid_namespaces() -> None:
    """Have the kernel refuse unshare(2) to this process and all that it starts, for good."""
    forbid((_UNSHARE[platform.machine()],), errno.EPERM)


def forbid(calls: Sequence[int], error: int) -> None:
    """Have the kernel answer system calls with an error, for good."""
    # From each comparison on, over those that follow and what allows all others.
    jumps = [(_JUMP_IF_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    listed = [
        (_LOAD_WORD, 0, 0, 0),
        *jumps,
        (_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
        (_RETURN, 0, 0, _SECCOMP_RET_ERRNO | error),
    ]
    instructions = (_Instruction * len(listed))(*listed)
    program = _Program(len(instructions), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


def drop_capabilities() -> None:
    """Have programs that root starts obey permissions of files."""
    libc = ctypes.CDLL(None)
    for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


if __name__ == "__main__":
    forbid_namespaces()
    os.execvp(sys.argv[1], sys.argv[1:])
