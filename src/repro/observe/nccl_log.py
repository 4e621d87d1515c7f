"""What NCCL's own log says about the network it uses (`NCCL_DEBUG=INFO`, subsystems INIT and NET).

Since 2.4 the lines are the same in all but details: rings became channels (2.5), channels have a
sub-channel and devices a proxy rank in brackets (2.12), names of external plugins a version.
"""

import re
from dataclasses import dataclass

_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_USING = re.compile(r"NET/(IB|Socket) : Using (.*)")
_HCA = re.compile(r"\[\d+\]([^:\s\[]+):(\d+)/(IB|RoCE)")
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
        Number of the device among those in use.
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
        In use, by the number that routes have as `device`.
    routes
        Through the network, in the log's order.
    """

    version: str
    hcas: tuple[Hca, ...]
    interfaces: tuple[str, ...]
    routes: tuple[Route, ...]


def read_nccl_log(text: str) -> NcclLog:
    """Read one rank's log, or those of several ranks of like nodes together."""
    version = _VERSION.search(text)
    hcas: tuple[Hca, ...] = ()
    interfaces: tuple[str, ...] = ()
    for kind, devices in _USING.findall(text):
        # What stands behind is the interface for out-of-band messages.
        named = devices.split("; OOB")[0].split(" ;")[0]
        if kind == "IB":
            found = _HCA.findall(named)
            hcas = hcas or tuple(
                Hca(name, int(port), _LAYERS[layer]) for name, port, layer in found
            )
        else:
            interfaces = interfaces or tuple(_INTERFACE.findall(named))
    routes = tuple(
        Route(int(sender), int(receiver), network, int(device), "GDRDMA" in rest)
        for sender, receiver, _, network, device, rest in _ROUTE.findall(text)
    )
    return NcclLog(version[1] if version else "", hcas, interfaces, routes)
