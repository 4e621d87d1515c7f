"""Gain the right to administer networks, then become another Python program.

Run as `python -m repro.testbed.enter ARGUMENT...`, where the arguments are those of the interpreter
that takes this one's place. The kernel lets only a process with a single thread enter a user
namespace (unshare(2)), and importing NumPy starts a second one: so this program imports nothing
that it does not need, and is over before others are.

Where the kernel refuses, the exit status is `REFUSED` and the last line on stderr the call and the
error's number, which `repro.testbed.ability` puts in words.
"""

import errno
import os
import sys

from repro.testbed.kernel import CLONE_NEWNET, CLONE_NEWUSER, unshare

REFUSED = 77


def become_network_admin() -> None:
    """Move into a new network namespace that this process may administer.

    Root needs no more than that; whoever may not is root inside a new user namespace.

    Raises
    ------
    OSError
        The kernel refuses; its `filename` is the call, or the file, that failed.
    """
    try:
        unshare(CLONE_NEWNET)
        return
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNET)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def main() -> None:
    """Become a network administrator, then the program of the command line."""
    try:
        become_network_admin()
    except OSError as error:
        call = error.filename or "write"
        print(call, error.errno or errno.EPERM, file=sys.stderr)
        sys.exit(REFUSED)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
