"""Run a command as a container without privileges would: the kernel refuses it new namespaces.

    python tests/without_namespaces.py make repro

A seccomp filter, as Docker's default one, answers unshare(2) with EPERM; not even root passes it.
"""

import ctypes
import errno
import os
import platform
import sys

_UNSHARE = {"x86_64": 272, "aarch64": 97}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
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
    instructions = (_Instruction * 4)(
        (_LOAD_WORD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, _UNSHARE[platform.machine()]),
        (_RETURN, 0, 0, _SECCOMP_RET_ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
    )
    program = _Program(len(instructions), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    forbid_namespaces()
    os.execvp(sys.argv[1], sys.argv[1:])
