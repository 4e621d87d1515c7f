"""Program that gains the right to administer networks, then becomes another Python program.

Run as `python -m repro.testbed.enter ARGUMENT...`, with the arguments of the interpreter that
replaces this one. Only a process with a single thread may enter a user namespace (unshare(2)), and
importing NumPy starts a second thread. Therefore this program imports only modules that it needs.

Where the kernel refuses, the exit status is `REFUSED`. The last line on stderr is the call and the
error number, which `repro.testbed.ability` explains.
"""

import errno
import os
import sys

from repro.testbed.kernel import CLONE_NEWNET, CLONE_NEWUSER, unshare

REFUSED = 77


def become_network_admin() -> None:
    """Move into a new network namespace that this process may administer.

    Root needs no more than that; other users become root inside a new user namespace.

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
    """Become a network administrator, then run the program of the command line."""
    try:
        become_network_admin()
    except OSError as error:
        call = error.filename or "write"
        print(call, error.errno or errno.EPERM, file=sys.stderr)
        sys.exit(REFUSED)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
