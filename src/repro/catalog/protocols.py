"""The transport protocols under study (`params/protocols.yaml`)."""

from pydantic import PositiveFloat

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS


class Protocol(Entry):
    """A transport of the collectives between nodes.

    `effective_gbps` is the payload rate one NIC sustains in each direction while a collective runs,
    in Gbit/s; `latency_us` is the one-way time of a small message. `input_claims` are the published
    claims the rate was computed from: inputs of every experiment, which none can reproduce.
    """

    label: str
    effective_gbps: PositiveFloat
    latency_us: PositiveFloat
    input_claims: tuple[str, ...] = ()
    source: str


def read_protocols() -> dict[str, Protocol]:
    """All protocols by name, fastest first."""
    protocols: dict[str, Protocol] = read_yaml(PARAMS / "protocols.yaml", dict[str, Protocol])
    return protocols


def protocol(name: str) -> Protocol:
    """One protocol by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("protocol", name, read_protocols())
