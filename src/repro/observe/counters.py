"""All byte counters of this node: HCA ports, IP interfaces, Slingshot adapters, GPUs' links.

Columns overlap and are not to be added up: an HCA port or a Slingshot adapter also carries its own
IP interface's bytes, a bridge or a bond those of its members, PCIe those that a NIC fetches from
GPU memory.
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

# Octets that a port's counters count in (InfiniBand Architecture Specification, PortXmitData).
_WORD_BYTES = 4
# Where counters of 32 bits stop: the specification has them saturate, not wrap.
_FULL = 2**32 - 1
# More than the longest counter with its time stamp.
_TEXT_BYTES = 128


@dataclass(frozen=True)
class Counters:
    """The byte counters of a node.

    Attributes
    ----------
    names
        `mlx5_0:1` for a port of an HCA, `eth0`, `ib0` or `hsn0` for an IP interface, `cxi0` for a
        Slingshot adapter, `gpu0 NVLink` and `gpu0 PCIe` in the driver's order of GPUs.
    read
        Returns (received, sent) bytes of each, in that order, for `repro.observe.nic`. It does not
        fail for a counter that cannot be read: that counter stays where it was, and if it can be
        read again later the bytes in between are in the next step.
    failures
        Why a counter could not be read, by name, as of its first failure; a series with an entry
        here is not to be trusted from some time on.
    """

    names: tuple[str, ...]
    read: Callable[[], list[tuple[int, int]]]
    failures: Mapping[str, str]


@contextmanager
def open_counters(sys: Path = SYS) -> Iterator[Counters]:
    """Open all counters that can be read now; the others have no column.

    Those are of active HCA ports and of IP interfaces that are up, virtual ones too, but not the
    loopback; sysfs shows the interfaces of the network namespace in which it was mounted. Files
    stay open, so that a sample costs some microseconds for each.

    RDMA bypasses the statistics of Slingshot's IP interfaces, so the driver's telemetry is read
    too. Sources: `HewlettPackard/shs-cxi-driver` (`cass_telem.c`: `value@seconds.nanoseconds`) and
    libfabric's `cxip_telemetry.c`, which waits for a refresh that the module parameter
    `cntr_refresh_interval` sets: with such drivers the series has steps of that length. Not yet
    checked on a Slingshot adapter.

    HCA ports: where the kernel or OFED offers counters of 64 bits they are read; one of 32 bits
    counts 16 GiB and stops, and is then a failure.
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
    """The files of active HCA ports, of IP interfaces that are up, and of Slingshot adapters."""
    for port in read_ports(sys):
        folder = sys / "class/infiniband" / port.hca / "ports" / str(port.number)
        # OFED's, of kernels before 4.5; since then `counters` has 64 bits where the HCA does.
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
    """A reader of both files, which `stack` closes."""
    received, sent = (
        stack.enter_context(path.open("rb", buffering=0)).fileno()
        for path in (source.received, source.sent)
    )
    return lambda: (source.unit_bytes * _count(received), source.unit_bytes * _count(sent))


def _count(file: int) -> int:
    """The number in an open file of sysfs, which is asked anew.

    Raises
    ------
    OSError
        The adapter is gone.
    ValueError
        There is no number, or a counter of 32 bits is full. That a counter of 64 bits is met at
        just this value is most unlikely.
    """
    text = os.pread(file, _TEXT_BYTES, 0)
    number = int(text.partition(b"@")[0])
    if number == _FULL:
        raise ValueError("its counter of 32 bits is full")
    return number
