"""Byte counters of this node: HCA ports, IP interfaces, Slingshot adapters, NVLink and PCIe.

Columns overlap, so do not add them up. An HCA port or a Slingshot adapter also counts the bytes of
its IP interface. A bridge or bond counts those of its members, PCIe those that a NIC reads from a
GPU.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from repro.errors import one_line
from repro.observe.adapters import SYS, read_interfaces, read_ports
from repro.observe.nvml import gpu_counters

# Unit of HCA port counters, in bytes (InfiniBand Architecture Specification, PortXmitData).
_WORD_BYTES = 4
# Maximum of 32-bit counters: the specification says that they saturate, not wrap.
_SATURATED = 2**32 - 1
# Longer than any counter with its time stamp.
_TEXT_BYTES = 128


@dataclass(frozen=True)
class Counters:
    """Byte counters of a node.

    Attributes
    ----------
    names
        `mlx5_0:1` for a port of an HCA, `eth0`, `ib0` or `hsn0` for an IP interface, `cxi0` for a
        Slingshot adapter, `gpu0 NVLink` and `gpu0 PCIe` in the driver's order of GPUs.
    read
        Returns (received, sent) bytes of each counter in the order of `names`. It does not raise if
        a counter cannot be read: the counter then keeps its last value. If it can be read again,
        the next value includes the bytes in between.
    failures
        Reason of the first failure of each counter that failed, by name. The series of such a
        counter is not valid after that.
    """

    names: tuple[str, ...]
    read: Callable[[], list[tuple[int, int]]]
    failures: Mapping[str, str]


@contextmanager
def open_counters(sys: Path = SYS) -> Iterator[Counters]:
    """Open all counters that can be read now; others get no column.

    These are the counters of active HCA ports and of IP interfaces that are up, including virtual
    ones, without the loopback. sysfs shows the interfaces of the network namespace in which it was
    mounted. Files stay open, so a sample takes some microseconds per counter.

    RDMA bypasses the statistics of Slingshot's IP interfaces, so the driver's telemetry is read
    too. Sources: `HewlettPackard/shs-cxi-driver` (`cass_telem.c`: `value@seconds.nanoseconds`) and
    libfabric's `cxip_telemetry.c`. The module parameter `cntr_refresh_interval` sets the refresh
    interval, which is then the time step of the series. Not yet checked on a Slingshot adapter.

    HCA ports: 64-bit counters are read if the kernel or OFED has them. A 32-bit counter stops at
    16 GiB, and is then reported as a failure.
    """
    with ExitStack() as stack:
        readers: dict[str, Callable[[], tuple[int, int]]] = {}
        for source in _sources(sys):
            with suppress(OSError):
                readers[source.name] = _reader(source, stack)
        readers |= stack.enter_context(gpu_counters())
        latest: dict[str, tuple[int, int]] = {}
        for name, reader in readers.items():
            with suppress(OSError, ValueError):
                latest[name] = reader()
        failures: dict[str, str] = {}

        def read() -> list[tuple[int, int]]:
            for name in latest:
                try:
                    latest[name] = readers[name]()
                except (OSError, ValueError) as error:
                    failures.setdefault(name, one_line(error))
            return list(latest.values())

        yield Counters(tuple(latest), read, failures)


class _Source(NamedTuple):
    name: str
    received: Path
    sent: Path
    unit_bytes: int = 1


def _sources(sys: Path) -> Iterator[_Source]:
    """Find the files of active HCA ports, IP interfaces that are up, and Slingshot adapters."""
    for port in read_ports(sys):
        folder = sys / "class/infiniband" / port.hca / "ports" / str(port.number)
        # OFED's names before Linux 4.5; since then `counters` has 64 bits if the HCA has.
        names = ("counters_ext/port_rcv_data_64", "counters_ext/port_xmit_data_64")
        if not (folder / names[0]).exists():
            names = ("counters/port_rcv_data", "counters/port_xmit_data")
        if port.active:
            yield _Source(port.name, folder / names[0], folder / names[1], _WORD_BYTES)
    for interface in read_interfaces(sys):
        folder = sys / "class/net" / interface.name / "statistics"
        if interface.up:
            yield _Source(interface.name, folder / "rx_bytes", folder / "tx_bytes")
    for adapter in sorted((sys / "class/cxi").glob("cxi*")):
        folder = adapter / "device/telemetry"
        yield _Source(
            adapter.name, folder / "hni_sts_rx_ok_octets", folder / "hni_sts_tx_ok_octets"
        )


def _reader(source: _Source, stack: ExitStack) -> Callable[[], tuple[int, int]]:
    """Open both files until `stack` closes, and return a reader of (received, sent) bytes."""
    received, sent = (
        stack.enter_context(path.open("rb", buffering=0)).fileno()
        for path in (source.received, source.sent)
    )
    unit = source.unit_bytes
    return lambda: (unit * _read_counter(received), unit * _read_counter(sent))


def _read_counter(file: int) -> int:
    """Read the number in an open file of sysfs again.

    Raises
    ------
    OSError
        The adapter was removed.
    ValueError
        The file contains no number, or a 32-bit counter is saturated. A 64-bit counter is unlikely
        to have exactly this value.
    """
    text = os.pread(file, _TEXT_BYTES, 0)
    number = int(text.partition(b"@")[0])
    if number == _SATURATED:
        raise ValueError("its 32-bit counter is saturated")
    return number
