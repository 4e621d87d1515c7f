"""Reader of NCCL's log: devices and routes (`NCCL_DEBUG=INFO`, subsystems INIT and NET).

The lines have changed in details since NCCL 2.4. Rings became channels (2.5). Channels got a
sub-channel and devices a proxy rank in parentheses (2.12), names of external plugins a version.
Ports may be merged into one device: in braces (2.20), or in a separate line after all ports (2.24).
With subnet-aware routing, a connection may use another device than its route names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_USING = re.compile(r"NET/(IB|Socket) : Using (.*)")
_HCA = re.compile(r"\[\d+\] ?([^:\s\[]+):(\d+)/(IB|RoCE)")
_DEVICE = re.compile(r"\[(\d+)\](?:=\{([^}]*)\}|[^\[{]+)")
_MERGED = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+\+\S+) ")
# Host and process that wrote a line, after any prefix of launchers and log collectors.
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
    """A port of a host channel adapter, with the `link_layer` as in sysfs."""

    name: str
    port: int
    link_layer: str


@dataclass(frozen=True)
class Route:
    """A connection between two ranks of different nodes, as one of them logged it.

    Attributes
    ----------
    network
        NCCL's name of the network: `IB` for verbs, `Socket`, or a plugin's name.
    device
        Number of the network device, among those in use.
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
    """Contents of a log; fields are empty if the log does not have them.

    Attributes
    ----------
    version
        Version of NCCL.
    hcas, interfaces
        Ports and interfaces in use. If no ports are merged, a route's `device` is an index.
    routes
        Connections through the network, in the log's order.
    merged
        Ports of each device, by its number; empty if no ports are merged.
    """

    version: str
    hcas: tuple[Hca, ...]
    interfaces: tuple[str, ...]
    routes: tuple[Route, ...]
    merged: Mapping[int, tuple[Hca, ...]] = field(default_factory=dict)


def read_nccl_log(text: str) -> NcclLog:
    """Read one rank's log, or the joined logs of ranks on nodes with the same devices."""
    version = _VERSION.search(text)
    hcas: tuple[Hca, ...] = ()
    merged: dict[int, tuple[Hca, ...]] = {}
    interfaces: tuple[str, ...] = ()
    for kind, devices in _USING.findall(text):
        # The interface for out-of-band messages follows.
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
    """Return a merged device's ports; an adapter's name is repeated for each of its ports."""
    unused = list(hcas)
    ports = []
    for name in names:
        port = next((hca for hca in unused if hca.name == name), None)
        if port is not None:
            unused.remove(port)
            ports.append(port)
    return tuple(ports)


def _routes(text: str) -> tuple[Route, ...]:
    """Read all routes, with the devices that subnet-aware routing chose instead."""
    overrides: dict[tuple[str, int], int] = {}
    routes = []
    for line in text.splitlines():
        process = _PROCESS.search(line)
        writer = process[1] if process else ""
        if override := _OVERRIDE.search(line):
            overrides[writer, int(override[1])] = int(override[2])
        elif route := _ROUTE.search(line):
            routes.append((writer, route))
    return tuple(
        Route(
            int(route[1]),
            int(route[2]),
            route[4],
            overrides.get((writer, int(route[5])), int(route[5])),
            "GDRDMA" in (route[6] or ""),
        )
        for writer, route in routes
    )
