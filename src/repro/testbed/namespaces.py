"""Anonymous Linux network namespaces: they have no name, and vanish with the processes in them."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyroute2 import IPRoute

from repro.errors import NotRunHere

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the calling thread's namespaces for new ones (unshare(2))."""
    _check(_libc.unshare(flags), "unshare")


def enter_network(namespace_fd: int) -> None:
    """Move the calling thread into a network namespace (setns(2))."""
    _check(_libc.setns(namespace_fd, CLONE_NEWNET), "setns")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel signal this process when its parent ends, however it ends (prctl(2))."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def become_network_admin() -> None:
    """Gain the right to create network namespaces: by being root, or in a user namespace.

    An ordinary user is mapped to root inside a new user namespace that owns a network namespace.
    The calling process must have one thread only.

    Raises
    ------
    NotRunHere
        The kernel forbids unprivileged user namespaces.
    """
    if os.geteuid() == 0:
        return
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NotRunHere(
            f"the testbed needs network namespaces, and user {uid} may not create any ({error}); "
            "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "user.max_user_namespaces>0)"
        ) from None


@dataclass(frozen=True)
class Namespace:
    """One network namespace, seen from outside.

    `fd` refers to it (for setns, and for `/proc/<pid>/fd/<fd>` from other processes); `netlink` is
    a netlink socket that was opened inside; `counters_fd` is an open `/proc/net/dev` of the inside,
    which stays bound to it and costs some ten microseconds to read.
    """

    fd: int
    netlink: IPRoute
    counters_fd: int

    def close(self) -> None:
        """Let go of it; the kernel removes it when nothing else uses it."""
        self.netlink.close()
        os.close(self.counters_fd)
        os.close(self.fd)


def create_namespace() -> Namespace:
    """Create a network namespace with its loopback up; the caller stays where it is."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        unshare(CLONE_NEWNET)
        try:
            fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
            netlink = IPRoute()
            counters_fd = os.open("/proc/thread-self/net/dev", os.O_RDONLY)
        finally:
            enter_network(home)
    finally:
        os.close(home)
    netlink.link("set", index=netlink.link_lookup(ifname="lo")[0], state="up")
    return Namespace(fd, netlink, counters_fd)


@contextmanager
def inside(namespace: Namespace) -> Iterator[None]:
    """Run the calling thread inside a namespace: sockets it opens there stay there."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter_network(namespace.fd)
        yield
    finally:
        enter_network(home)
        os.close(home)
