"""Selection of a protocol for NCCL on real nodes, and its proof from NCCL's log and counters."""

from collections import Counter
from collections.abc import Mapping, Sequence

from repro.catalog.systems.protocols import Nccl, Protocol, Variant
from repro.errors import ProtocolMissing, ReproError
from repro.observe.adapters import Interface, Port
from repro.observe.nccl_log import NcclLog

# Log output of NCCL that the proof needs.
LOGGING = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}
_KINDS = {"InfiniBand": ("infiniband",), "Ethernet": ("ethernet", "slingshot")}
# Counters must have seen this fraction of the minimum traffic. They may miss messages in flight and
# the control traffic of another protocol.
_COUNTED = 0.9


def choose_adapters(
    entry: Protocol | Variant,
    ports: Sequence[Port],
    interfaces: Sequence[Interface],
    adapters: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the HCA ports (`mlx5_0:1`) or interfaces of a node that suit a protocol.

    Parameters
    ----------
    ports, interfaces
        The node's adapters (`repro.observe.adapters`).
    adapters
        Names of adapters to use. Empty: all physical ones that suit the protocol.

    Raises
    ------
    ProtocolMissing
        No adapter of the node suits; the message lists them.
    """
    nccl = entry.nccl
    suiting = _suiting(nccl, ports, interfaces, adapters)
    if not suiting:
        what = f"an active {nccl.link_layer} port" if nccl.network == "IB" else _interface(nccl)
        asked = f" among {', '.join(adapters)}" if adapters else ""
        here = ", ".join(map(str, (*ports, *interfaces))) or "no adapter at all"
        raise ProtocolMissing(f"protocol {entry.label} needs {what}{asked}; this node has {here}")
    return tuple(suiting)


def _suiting(
    nccl: Nccl, ports: Sequence[Port], interfaces: Sequence[Interface], adapters: Sequence[str]
) -> list[str]:
    if nccl.network == "IB":
        fit = (port for port in ports if port.active and port.link_layer == nccl.link_layer)
        return [port.name for port in fit if not adapters or port.name in adapters]
    kinds = _KINDS[nccl.link_layer]
    up = (one for one in interfaces if one.up and one.kind in kinds)
    return [one.name for one in up if (one.name in adapters if adapters else one.physical)]


def nccl_environment(entry: Protocol | Variant, adapters: Sequence[str]) -> dict[str, str]:
    """Return variables with which NCCL uses a protocol through these adapters, and logs it."""
    # With `=` NCCL compares whole names, not prefixes.
    name = "NCCL_IB_HCA" if entry.nccl.network == "IB" else "NCCL_SOCKET_IFNAME"
    return {**LOGGING, **entry.nccl.environment, name: "=" + ",".join(adapters)}


def gloo_environment(entry: Protocol | Variant, adapters: Sequence[str]) -> dict[str, str]:
    """Return variables with which gloo uses a protocol, on nodes without GPUs.

    Raises
    ------
    ProtocolMissing
        The protocol is not IP.
    """
    if entry.nccl.network != "Socket":
        raise ProtocolMissing(
            f"protocol {entry.label} needs NCCL on GPUs; without GPUs, ranks use gloo, which "
            "supports TCP only"
        )
    return {"GLOO_SOCKET_IFNAME": ",".join(adapters)}


def _interface(nccl: Nccl) -> str:
    return (
        "an IP interface on InfiniBand"
        if nccl.link_layer == "InfiniBand"
        else "an Ethernet interface"
    )


def prove_routes(entry: Protocol | Variant, log: NcclLog, kinds: Mapping[str, str]) -> None:
    """Compare the routes in NCCL's log with the requested protocol.

    Parameters
    ----------
    log
        Log of ranks on several nodes.
    kinds
        Kinds of the nodes' interfaces, by name (`Interface.kind`).

    Raises
    ------
    ReproError
        A route uses another network, or there is none; the message names NCCL's networks.
    """
    nccl = entry.nccl
    if not log.routes:
        raise ReproError(
            f"protocol {entry.label}: NCCL's log has no route between nodes; were there two nodes, "
            "and NCCL_DEBUG=INFO?"
        )
    used = Counter(_way(route.network) for route in log.routes)
    if set(used) != {nccl.network}:
        raise ReproError(
            f"protocol {entry.label} requires {nccl.network}, but NCCL used "
            f"{', '.join(f'NET/{name} for {count} routes' for name, count in used.items())}"
        )
    if nccl.network == "IB":
        layers = {hca.link_layer for hca in log.hcas}
        if layers != {nccl.link_layer}:
            named = ", ".join(f"{hca.name}:{hca.port} ({hca.link_layer})" for hca in log.hcas)
            raise ReproError(
                f"protocol {entry.label} requires ports on {nccl.link_layer}, but NCCL used {named}"
            )
    else:
        wrong = [name for name in log.interfaces if kinds.get(name) not in _KINDS[nccl.link_layer]]
        if wrong:
            raise ReproError(
                f"protocol {entry.label} requires {_interface(nccl)}, but NCCL used "
                f"{', '.join(f'{name} ({kinds.get(name, chr(63))})' for name in wrong)}"
            )
    direct = sum(route.gpudirect for route in log.routes)
    if nccl.gpudirect is not None and direct != (len(log.routes) if nccl.gpudirect else 0):
        raise ReproError(
            f"protocol {entry.label} requires GPUDirect {'on' if nccl.gpudirect else 'off'}, but "
            f"{direct} of {len(log.routes)} routes have it; it needs nvidia_peermem or DMA-BUF"
        )


def _way(network: str) -> str:
    """Return `IB` for verbs and their plugins (`IBext_v8`, `NCCL RDMA Plugin v10`), else the name.

    Other networks are, for example, `AWS Libfabric`.
    """
    return "IB" if network.startswith(("IB", "NCCL RDMA Plugin")) else network


def prove_bytes(
    entry: Protocol | Variant, host: str, needed: float, counted: Mapping[str, int]
) -> None:
    """Compare the bytes counted by a node's chosen adapters with the minimum traffic of the run.

    Parameters
    ----------
    needed
        Minimum bytes from the node's ranks to other nodes.
    counted
        Bytes that its adapters sent during the run, by name.

    Raises
    ------
    ReproError
        The protocol's adapters carried too little: the traffic took another network.
    """
    total = sum(counted.values())
    if total < _COUNTED * needed:
        named = ", ".join(f"{name} {1e-6 * sent:.1f} MB" for name, sent in counted.items())
        raise ReproError(
            f"protocol {entry.label}: {host} had to send {1e-6 * needed:.1f} MB to other nodes, "
            f"but the protocol's adapters counted {named or 'nothing'}"
        )
