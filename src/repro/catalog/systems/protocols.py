"""Transport protocols under study (`params/protocols.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat

from repro.catalog.reading import Entry, choose, read_params

LinkLayer = Literal["InfiniBand", "Ethernet"]


class Nccl(Entry):
    """NCCL settings that select a protocol on real nodes, and what NCCL's log must then report.

    Attributes
    ----------
    network
        `IB` for verbs, `Socket` for IP.
    link_layer
        Link layer of the HCAs' ports, or of the interfaces.
    gpudirect
        Whether the NIC must read and write GPU memory; None if NCCL has no choice.
    environment
        NCCL's environment variables, without those that name a node's HCAs and interfaces.
    """

    network: Literal["IB", "Socket"]
    link_layer: LinkLayer
    gpudirect: bool | None = None
    environment: dict[str, str]


class Protocol(Entry):
    """Transport of the collectives between nodes.

    `effective_gbps` is the payload rate in Gbit/s that one NIC sustains in each direction during a
    collective. `latency_us` is the one-way time of a small message. `input_claims` are the
    published claims that the rate was computed from; no experiment can reproduce them, because all
    use the rate. `nccl` applies to real nodes.
    """

    label: str
    effective_gbps: PositiveFloat
    latency_us: PositiveFloat
    input_claims: tuple[str, ...] = ()
    nccl: Nccl
    source: str


class Variant(Entry):
    """Protocol of real nodes only, without a published rate."""

    label: str
    nccl: Nccl
    source: str


def read_transports() -> dict[str, Protocol | Variant]:
    """Read all protocols that real nodes can use, by name, in the order of the file."""
    protocols: dict[str, Protocol | Variant] = read_params(
        "protocols.yaml", dict[str, Protocol | Variant]
    )
    return protocols


def transport(name: str) -> Protocol | Variant:
    """Return one of them by name; an unknown name is a `ReproError` that lists the choices."""
    return choose("protocol", name, read_transports())


def read_protocols() -> dict[str, Protocol]:
    """Read the protocols with a rate by name, fastest first."""
    return {name: entry for name, entry in read_transports().items() if isinstance(entry, Protocol)}


def protocol(name: str) -> Protocol:
    """Return a protocol with a rate by name; an unknown name is a `ReproError` with the choices.

    Examples
    --------
    >>> protocol("tcp").label
    'TCP/IP'
    """
    return choose("protocol", name, read_protocols())
