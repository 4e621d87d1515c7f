"""What NCCL's own log says about the network it uses (`NCCL_DEBUG=INFO`, subsystems INIT and NET).

Since 2.4 the lines are the same in all but details: rings became channels (2.5), channels have a
sub-channel and devices a proxy rank in brackets (2.12), names of external plugins a version. Since
2.20 ports may be merged into one device: in braces, or, since 2.24, in a line of its own after all
ports. With subnet-aware routing a connection may take another device than its route names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_USING = re.compile(r"NET/(IB|Socket) : Using (.*)")
_HCA = re.compile(r"\[\d+\] ?([^:\s\[]+):(\d+)/(IB|RoCE)")
_DEVICE = re.compile(r"\[(\d+)\](?:=\{([^}]*)\}|[^\[{]+)")
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+\+\S+) ")
# Who wrote a line: its host and process, behind what launchers and collectors of logs put there.
_PROCESS = re.compile(r"(\S+:\d+):\d+ \[\d+\] NCCL")
_OVERRIDE = re.compile(r"Subnet-aware routing: overriding dev (\d+) with dev (\d+)")
_INTERFACE = re.compile(r"\[\d+\]([^:\s\[]+):")
_ROUTE = re.compile(
    r"(?:Channel|Ring|Tree) \d+(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? "
    r"\[(send|receive)\] via NET/([^/]+)/(\d+)(?:\(\d+\))?(/\S*)?"
)
_LAYERS = {"IB": "InfiniBand", "RoCE": "Ethernet"}


@dataclass(frozen=True)
class Hca:
    """A port of a host channel adapter; `link_layer` as sysfs names it."""

    name: str
    port: int
    link_layer: str


@dataclass(frozen=True)
class Route:
    """A connection between two ranks of different nodes, as one of them logged it.

    Attributes
    ----------
    network
        NCCL's name of what carries it: `IB` for verbs, `Socket`, or that of a plugin.
    device
        Number of the device that carries it, among those in use.
    gpudirect
        Whether the network reads and writes the GPU's memory.
    """

    sender: int
    receiver: int
    network: str
    device: int
    gpudirect: bool


@dataclass(frozen=True)
class NcclLog:
    """What a log says; empty where it says nothing.

    Attributes
    ----------
    version
        NCCL's.
    hcas, interfaces
        In use; where no ports are merged, by the number that routes have as `device`.
    routes
        Through the network, in the log's order.
    merged
        Where ports are merged: those of every device, by its number.
    """

    version: str
    hcas: tuple[Hca, ...]
    interfaces: tuple[str, ...]
    routes: tuple[Route, ...]
    merged: Mapping[int, tuple[Hca, ...]] = field(default_factory=dict)


def read_nccl_log(text: str) -> NcclLog:
    """Read one rank's log, or those of several ranks of like nodes together."""
    version = _VERSION.search(text)
    hcas: tuple[Hca, ...] = ()
    merged: dict[int, tuple[Hca, ...]] = {}
    interfaces: tuple[str, ...] = ()
    for kind, devices in _USING.findall(text):
        # What stands behind is the interface for out-of-band messages.
        named = devices.split("; OOB")[0].split(" ;")[0]
        if kind == "Socket":
            interfaces = interfaces or tuple(_INTERFACE.findall(named))
        elif not hcas:
            hcas = _hcas(named)
            merged = {
                int(found[1]): _hcas(found[2] or found[0]) for found in _DEVICE.finditer(named)
            }
    for number, names in _MERGED.findall(text):
        merged[int(number)] = _ports(names.split("+"), hcas)
    several = any(len(ports) > 1 for ports in merged.values())
    return NcclLog(
        version[1] if version else "", hcas, interfaces, _routes(text), merged if several else {}
    )


def _hcas(text: str) -> tuple[Hca, ...]:
    return tuple(Hca(name, int(port), _LAYERS[layer]) for name, port, layer in _HCA.findall(text))


def _ports(names: list[str], hcas: tuple[Hca, ...]) -> tuple[Hca, ...]:
    """The ports of adapters, which are named once for each port."""
    left = list(hcas)
    found = []
    for name in names:
        port = next((hca for hca in left if hca.name == name), None)
        if port is not None:
            left.remove(port)
            found.append(port)
    return tuple(found)


def _routes(text: str) -> tuple[Route, ...]:
    """All routes, those of a process with the devices that it says it took instead."""
    overrides: dict[tuple[str, int], int] = {}
    found = []
    for line in text.splitlines():
        process = _PROCESS.search(line)
        writer = process[1] if process else ""
        if override := _OVERRIDE.search(line):
            overrides[writer, int(override[1])] = int(override[2])
        elif route := _ROUTE.search(line):
            found.append((writer, route))
    return tuple(
        Route(
            int(route[1]),
            int(route[2]),
            route[4],
            overrides.get((writer, int(route[5])), int(route[5])),
            "GDRDMA" in (route[6] or ""),
        )
        for writer, route in found
    )
