"""A topology made of veth pairs, bridges and token buckets, and the rates of its links.

Every vertex of the tree is a network namespace. A leaf is an emulated GPU with an address, an inner
vertex a bridge (a node's bus), and the root the fabric's switch. Every edge is a veth pair, shaped
in both directions by tbf. So a link is full duplex, and traffic between two GPUs of one node
crosses their bus links only.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from repro.catalog.systems.topology import Topology
from repro.errors import NotRunHere
from repro.observe.nic import interface_bytes
from repro.testbed.namespaces import Namespace, create_namespace

SUBNET = "10.88.0.0/16"
UPLINK = "up"
MTU = 9000
# Bytes that the token bucket counts per byte of TCP payload in a full-sized frame. The MTU contains
# the headers of IPv4 (20), TCP (20) and timestamps (12); Ethernet's 14 bytes are outside.
FRAMING = (MTU + 14) / (MTU - 52)
# A bucket must hold all bytes of a timer tick, but a short transfer must not pass unshaped. So it
# holds 10 ms of the link, at most one maximal segmentation-offload packet.
BUCKET_S = 0.01
_LARGEST_BUCKET_BYTES = 70_000
# A NIC throttles its senders, and InfiniBand's fabric loses nothing. So the queue of a bucket holds
# more than sockets have in flight, because TCP waits 200 ms for a dropped packet.
_QUEUE_BYTES = 1 << 25
# Limit of netem, which counts packets: more than so many bytes have, even of the smallest packets.
_QUEUE_PACKETS = _QUEUE_BYTES // 64
_LEAST_TIMEOUT_MS = 10_000
# The kernel uses a route's least timeout only with this bit of RTAX_LOCK, that of RTAX_RTO_MIN.
_LOCKED_RTO_MIN = 1 << 13
_BUCKET_HANDLE = "1:"
_BUCKET_CLASS = "1:1"


@dataclass(frozen=True)
class Link:
    """One edge of the tree, in a level of the topology.

    `child` holds the interface `UPLINK`, `parent` the other end; `uplink` and `port` are their
    indices.
    """

    level: str
    child: Namespace
    uplink: int
    parent: Namespace
    port: int


@dataclass(frozen=True)
class Network:
    """A built topology: one namespace per GPU (rank order), one per node, and every link.

    `rates_gbps` are the rates in force, by level name, as `set_rates` set them.
    """

    topology: Topology
    gpus: tuple[Namespace, ...]
    addresses: tuple[str, ...]
    nodes: tuple[Namespace, ...]
    links: tuple[Link, ...]
    netem: bool
    rates_gbps: dict[str, float] = field(default_factory=dict)


@contextmanager
def build_network(topology: Topology) -> Iterator[Network]:
    """Create the namespaces and links of a topology, not shaped yet; remove them on exit.

    Raises
    ------
    NotRunHere
        The kernel lacks veth, bridge or tbf, or the caller may not create them.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    created: list[Namespace] = []
    try:
        try:
            yield _build(topology, created)
        except (NetlinkError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EPERM, errno.EACCES):
                raise
            raise NotRunHere(
                f"the testbed's network cannot be built ({error}); it needs the kernel's veth, "
                "bridge and sch_tbf, and the right to administer network namespaces"
            ) from None
    finally:
        for namespace in created:
            namespace.close()


def _build(topology: Topology, created: list[Namespace]) -> Network:
    def vertex() -> Namespace:
        namespace = create_namespace()
        created.append(namespace)
        return namespace

    below = [vertex() for _ in range(topology.gpus)]
    gpus = tuple(below)
    nodes: tuple[Namespace, ...] = gpus
    links: list[Link] = []
    for level in topology.levels:
        switches = []
        for first in range(0, len(below), level.members):
            switch = vertex()
            switch.netlink.link("add", ifname="bridge", kind="bridge")
            _up(switch, "bridge")
            for member in range(level.members):
                child = below[first + member]
                links.append(_connect(level.name, child, switch, f"port{member}"))
            switches.append(switch)
        nodes, below = tuple(below), switches
    addresses = tuple(_address(gpu, rank) for rank, gpu in enumerate(gpus))
    return Network(topology, gpus, addresses, nodes, tuple(links), _has_netem(below[0]))


def _connect(level: str, child: Namespace, parent: Namespace, port: str) -> Link:
    parent.netlink.link(
        "add",
        ifname=port,
        kind="veth",
        peer={"ifname": UPLINK, "net_ns_fd": child.fd},
    )
    bridge = parent.netlink.link_lookup(ifname="bridge")[0]
    port_index = _up(parent, port, master=bridge)
    # A vertex that has a bridge itself attaches its uplink to it.
    own_bridge = child.netlink.link_lookup(ifname="bridge")
    uplink = _up(child, UPLINK, **({"master": own_bridge[0]} if own_bridge else {}))
    return Link(level, child, uplink, parent, port_index)


def _up(namespace: Namespace, interface: str, **attributes: int) -> int:
    """Bring an interface up, and return its index."""
    index: int = namespace.netlink.link_lookup(ifname=interface)[0]
    namespace.netlink.link("set", index=index, state="up", mtu=MTU, **attributes)
    return index


def _address(gpu: Namespace, rank: int) -> str:
    address = f"10.88.{(rank + 1) // 256}.{(rank + 1) % 256}"
    index = gpu.netlink.link_lookup(ifname=UPLINK)[0]
    gpu.netlink.addr("add", index=index, address=address, prefixlen=16)
    # The machine's default may be a pacing algorithm (bbr), which estimates the token bucket
    # instead of filling it; every kernel has cubic. Nothing is lost, but on links that are a
    # hundred times slower acknowledgements arrive later than TCP's retransmission timeout.
    gpu.netlink.route(
        "replace",
        dst=SUBNET,
        oif=index,
        scope="link",
        prefsrc=address,
        metrics={"cc_algo": "cubic", "rto_min": _LEAST_TIMEOUT_MS, "lock": _LOCKED_RTO_MIN},
    )
    return address


def bucket_bytes(link_gbps: float) -> int:
    """Return the bytes that a link may send at once after a pause."""
    return min(_LARGEST_BUCKET_BYTES, max(2 * MTU, int(link_gbps * 1e9 / 8 * BUCKET_S)))


def set_rates(network: Network, rates_gbps: dict[str, float]) -> None:
    """Set the payload rate of every link, by level name, in Gbit/s in each direction."""
    for link in network.links:
        # Interleaved runs change few of them, and each change takes milliseconds.
        if network.rates_gbps.get(link.level) == rates_gbps[link.level]:
            continue
        bytes_per_second = int(rates_gbps[link.level] * 1e9 / 8 * FRAMING)
        for namespace, index in ((link.child, link.uplink), (link.parent, link.port)):
            namespace.netlink.tc(
                "replace",
                "tbf",
                index=index,
                handle=_BUCKET_HANDLE,
                rate=bytes_per_second,
                burst=bucket_bytes(rates_gbps[link.level]),
                limit=_QUEUE_BYTES,
            )
    network.rates_gbps.update(rates_gbps)


def set_fabric_latency(network: Network, latency_s: float) -> float:
    """Add a one-way latency to the links of the top level, and return what was added.

    It follows the token bucket of each uplink, so that a route between two nodes has it once. A
    kernel without netem adds none: the result is 0.
    """
    if not network.netem:
        return 0.0
    fabric = network.topology.levels[-1].name
    for link in network.links:
        if link.level == fabric:
            delay_us = round(latency_s * 1e6)
            link.child.netlink.tc(
                "replace",
                "netem",
                index=link.uplink,
                parent=_BUCKET_CLASS,
                delay=delay_us,
                limit=_QUEUE_PACKETS,
            )
    return latency_s


def _has_netem(namespace: Namespace) -> bool:
    """Test on an unused loopback whether the kernel can emulate latency."""
    from pyroute2.netlink.exceptions import NetlinkError

    index = namespace.netlink.link_lookup(ifname="lo")[0]
    try:
        namespace.netlink.tc("add", "netem", index=index, delay=1000)
    except NetlinkError:
        return False
    namespace.netlink.tc("del", index=index, root=True)
    return True


def read_uplink_bytes(namespace: Namespace) -> tuple[int, int]:
    """Return the bytes received and sent by a vertex's uplink since it was created."""
    return interface_bytes(os.pread(namespace.counters_fd, 8192, 0).decode(), UPLINK)
