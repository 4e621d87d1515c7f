"""Check of shaped links before a measurement: they must carry the rates that were set."""

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TypeVar

from repro.errors import ReproError
from repro.observe.cpu_contention import find_cpu_competitor
from repro.testbed.links import FRAMING, MTU, Network, bucket_bytes, read_uplink_bytes
from repro.testbed.namespaces import Namespace, inside

TOLERANCE = 0.05
Checked = TypeVar("Checked")
Say = Callable[[str], None]
_PORT = 29400
# Other work on the machine, or on the host of a virtual one, may starve checks for minutes; an
# error that lasts longer is real. `repro.train.series` waits as long for an iteration.
PATIENCE_S = 600.0
_PAUSE_S, _SAY_AFTER_S, _SAY_AGAIN_S = 0.5, 10.0, 60.0
_RAMP_S = 0.1
# Headers of a datagram's frame: Ethernet's, IPv4's and UDP's.
_FRAME_BYTES, _HEADERS_BYTES = MTU + 14, 14 + 20 + 8
_DATAGRAM_BYTES = _FRAME_BYTES - _HEADERS_BYTES
# Datagrams cross the links in bundles, as TCP's segments do; otherwise the cores that fill links
# would limit them. A bundle that fills a bucket alone would lose datagrams that arrive meanwhile.
_MOST_DATAGRAMS = 4
# Constants of <linux/udp.h>, which Python's socket module lacks.
_UDP_SEGMENT, _UDP_GRO = 103, 104
_WINDOW_S = 0.2
# Send rate over link rate: data that is left in queues has to pass, too.
_AHEAD = 1.3
# Slow links empty few buckets in that time; this many more make the rate exact to 2 %.
_WINDOW_BUCKETS = 15
# A link that carries one rate carries any rate from half of it to a fourth more: errors occur only
# where the kernel is late.
_COVERED = (0.5, 1.25)


@dataclass(frozen=True)
class LinkCheck:
    """Check of a level's links: rate that is set, rate in the check, and each link's result.

    The check may have been at another rate, if it covers the one that is set.
    """

    level: str
    set_gbps: float
    checked_gbps: float
    carried_gbps: tuple[float, ...]

    def covers(self, level: str, link_gbps: float) -> bool:
        """Test whether the check shows that the level's links carry such a rate."""
        least, most = _COVERED
        return self.level == level and least <= link_gbps / self.checked_gbps <= most


def until_verified(
    check: Callable[[], Checked], say: Say, patience_s: float = PATIENCE_S
) -> Checked:
    """Repeat a check until it passes, and return its result; `say` gets the cause of the wait.

    Raises
    ------
    ReproError
        The check has not passed for `patience_s` seconds; the error is the check's own.
    """
    now = time.monotonic()
    deadline, say_at = now + patience_s, now + _SAY_AFTER_S
    while True:
        try:
            return check()
        except ReproError as error:
            now = time.monotonic()
            if now > deadline:
                raise
            if now > say_at:
                say(f"waiting, {find_cpu_competitor()}: {error}")
                say_at = now + _SAY_AGAIN_S
        time.sleep(_PAUSE_S)


def verify_links(
    network: Network,
    rates_gbps: dict[str, float],
    ranks: int,
    known: list[LinkCheck],
    say: Say,
    patience_s: float = PATIENCE_S,
) -> tuple[LinkCheck, ...]:
    """Fill the links that ranks use, and compare the payload rates with those set.

    The check fills all links of the levels between the ranks, also links of other GPUs. Switch by
    switch, all vertices send to their neighbours at the same time. Each link carries one flow in
    each direction, and is the slowest link on that flow's route. A level of one vertex has no flow
    and is not checked.

    Parameters
    ----------
    network : Network
        The emulated network, otherwise idle.
    rates_gbps : dict
        The rates in force, by level name, in Gbit/s.
    ranks : int
        Number of ranks, from the first GPU on.
    known : list
        Checks so far, also at other rates; new ones are added.
    say : callable
        Function that shows the user a line while the check waits for links.
    patience_s : float
        Longest time until the links below one switch carry their rates.

    Raises
    ------
    ReproError
        A link has carried more than 5 % less or more than its rate for that time; the message names
        it.
    """
    checks = []
    levels = network.topology.levels
    highest = network.topology.lowest_common_level(range(ranks))
    used = [level.name for level in levels].index(highest) + 1
    for height, level in enumerate(levels[:used]):
        limit = min(rates_gbps[lower.name] for lower in levels[: height + 1])
        below = prod(lower.members for lower in levels[:height])
        switches = _neighbours(below, level.members, network.topology.gpus)
        if not switches:
            continue
        check = next((one for one in known if one.covers(level.name, limit)), None)
        if check is None:
            carried = [
                rate
                for flows in switches
                for rate in until_verified(
                    partial(_verified_gbps, network, level.name, flows, limit), say, patience_s
                )
            ]
            check = LinkCheck(level.name, limit, limit, tuple(carried))
            known.append(check)
        checks.append(replace(check, set_gbps=limit))
    return tuple(checks)


def _verified_gbps(
    network: Network, level: str, flows: list[tuple[int, int]], limit: float
) -> list[float]:
    """Return the rates that the links below one switch carry, if they match the set rate."""
    window_s = _WINDOW_S + _WINDOW_BUCKETS * bucket_bytes(limit) * 8e-9 / limit
    carried = _carried_gbps(network, flows, limit, window_s)
    worst = max(range(len(flows)), key=lambda flow: abs(carried[flow] / limit - 1))
    if abs(carried[worst] / limit - 1) <= TOLERANCE:
        return carried
    sender, receiver = flows[worst]
    raise ReproError(
        f"{level} link between GPU {sender} and GPU {receiver} carries "
        f"{carried[worst] * 1e3:.1f} Mbit/s, more than {TOLERANCE:.0%} off the "
        f"{limit * 1e3:.1f} Mbit/s it is set to; the machine is too busy or too "
        "slow for this rate; fix: stop other work, or make the testbed model smaller"
    )


def _neighbours(below: int, members: int, gpus: int) -> list[list[tuple[int, int]]]:
    """Return flows between GPUs by switch: each vertex of `below` GPUs sends to the next one.

    Switches are checked one after another: no collective fills all buses of all nodes at once.
    """
    switches = []
    for base in range(0, gpus, below * members):
        vertices = range(base, min(base + below * members, gpus), below)
        if len(vertices) > 1:
            switches.append(
                [
                    (sender, vertices[(number + 1) % len(vertices)])
                    for number, sender in enumerate(vertices)
                ]
            )
    return switches


def _carried_gbps(
    network: Network, flows: list[tuple[int, int]], limit: float, window_s: float
) -> list[float]:
    """Measure the rates of simultaneous flows over such links, in Gbit/s of a TCP payload.

    Datagrams fill the queues without congestion control. No process reads them, because the
    receivers' interface counters show the bytes that arrived.
    """
    done = threading.Event()
    threads, sinks = [], []
    datagrams = min(_MOST_DATAGRAMS, bucket_bytes(limit) // _FRAME_BYTES)
    for sender, receiver in flows:
        sink = _socket(network.gpus[receiver])
        # Datagrams beyond this small buffer are dropped at once, bundle by bundle.
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sink.setsockopt(socket.IPPROTO_UDP, _UDP_GRO, 1)
        sink.bind((network.addresses[receiver], _PORT))
        sinks.append(sink)
        source = _socket(network.gpus[sender])
        source.connect((network.addresses[receiver], _PORT))
        sending = (source, datagrams, _AHEAD * limit * 1e9 / 8, done)
        threads.append(threading.Thread(target=_send, args=sending, daemon=True))
    for thread in threads:
        thread.start()
    time.sleep(_RAMP_S)
    before = [_received(network.gpus[receiver]) for _, receiver in flows]
    time.sleep(window_s)
    after = [_received(network.gpus[receiver]) for _, receiver in flows]
    done.set()
    for thread in threads:
        thread.join()
    for sink in sinks:
        sink.close()
    # Counters have a bundle's headers once, buckets those of every frame in it.
    framed = datagrams * _FRAME_BYTES / (datagrams * _DATAGRAM_BYTES + _HEADERS_BYTES)
    return [
        (last_bytes - first_bytes) * framed * 8e-9 / (last_s - first_s) / FRAMING
        for (first_s, first_bytes), (last_s, last_bytes) in zip(before, after, strict=True)
    ]


def _received(gpu: Namespace) -> tuple[float, int]:
    return time.monotonic(), read_uplink_bytes(gpu)[0]


def _socket(namespace: Namespace) -> socket.socket:
    with inside(namespace):
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _send(source: socket.socket, datagrams: int, bytes_per_s: float, done: threading.Event) -> None:
    bundle = bytes(datagrams * _DATAGRAM_BYTES)
    source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, _DATAGRAM_BYTES)
    # The kernel blocks the sender while its own link's queue is full.
    source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(bundle))
    next_s = time.monotonic()
    with source:
        while not done.is_set():
            source.send(bundle)
            next_s += len(bundle) / bytes_per_s
            time.sleep(max(0.0, next_s - time.monotonic()))
