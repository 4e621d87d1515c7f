"""Anonymous Linux network namespaces, which vanish with the processes in them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repro.testbed.kernel import CLONE_NEWNET, enter_network, unshare

if TYPE_CHECKING:
    from pyroute2 import IPRoute


@dataclass(frozen=True)
class Namespace:
    """One network namespace, seen from outside.

    `fd` refers to it (for setns, and for `/proc/<pid>/fd/<fd>` from other processes); `netlink` is
    a netlink socket that was opened inside. `counters_fd` is an open `/proc/net/dev` of the inside,
    which stays bound to it and takes about 10 us to read.
    """

    fd: int
    netlink: "IPRoute"
    counters_fd: int

    def close(self) -> None:
        """Release it; the kernel removes it when nothing else uses it."""
        self.netlink.close()
        os.close(self.counters_fd)
        os.close(self.fd)


def create_namespace() -> Namespace:
    """Create a network namespace with its loopback up; the caller stays in its own namespace."""
    # The package's base installation reads results only, and has no pyroute2.
    from pyroute2 import IPRoute

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
