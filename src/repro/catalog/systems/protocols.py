"""The transport protocols under study (`params/protocols.yaml`)."""

from typing import Literal

from pydantic import PositiveFloat

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS

LinkLayer = Literal["InfiniBand", "Ethernet"]


class Nccl(Entry):
    """How NCCL is told to use a protocol on real nodes, and what its log must then say.

    Attributes
    ----------
    network
        `IB` for verbs, `Socket` for IP.
    link_layer
        Of the HCAs' ports, or of the interfaces.
    gpudirect
        Whether the NIC must read and write GPU memory; None where NCCL has no choice.
    environment
        Variables for NCCL. Those that name HCAs and interfaces come from what a node has.
    """

    network: Literal["IB", "Socket"]
    link_layer: LinkLayer
    gpudirect: bool | None = None
    environment: dict[str, str]


class Protocol(Entry):
    """A transport of the collectives between nodes.

    `effective_gbps` is the payload rate one NIC sustains in each direction while a collective runs,
    in Gbit/s; `latency_us` is the one-way time of a small message. `input_claims` are the published
    claims the rate was computed from: inputs of every experiment, which none can reproduce. `nccl`
    is for real nodes.
    """

    label: str
    effective_gbps: PositiveFloat
    latency_us: PositiveFloat
    input_claims: tuple[str, ...] = ()
    nccl: Nccl
    source: str


class Variant(Entry):
    """A protocol of real nodes only, of which no rate is published."""

    label: str
    nccl: Nccl
    source: str


def read_transports() -> dict[str, Protocol | Variant]:
    """All that real nodes can be told to use, by name, in the order of the file."""
    found: dict[str, Protocol | Variant] = read_yaml(
        PARAMS / "protocols.yaml", dict[str, Protocol | Variant]
    )
    return found


def transport(name: str) -> Protocol | Variant:
    """One of them by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("protocol", name, read_transports())


def read_protocols() -> dict[str, Protocol]:
    """All protocols with a rate by name, fastest first."""
    return {name: entry for name, entry in read_transports().items() if isinstance(entry, Protocol)}


def protocol(name: str) -> Protocol:
    """One protocol by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("protocol", name, read_protocols())
