"""The clusters under study (`params/clusters.yaml`)."""

from typing import Annotated

from pydantic import Field, PositiveFloat

from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.topology import Topology
from repro.paths import PARAMS


class Gpu(Entry):
    """A GPU as far as the experiments need one.

    `peak_flops` is the dense half-precision peak in FLOP/s. `mfu` is the fraction of it that
    training reaches on models of this size, with its plausible range `mfu_range`.
    """

    name: str
    peak_flops: PositiveFloat
    mfu: Annotated[float, Field(gt=0, lt=1)]
    mfu_range: tuple[float, float]
    gradient_bytes: Annotated[int, Field(gt=0)]
    source: str


class Cluster(Entry):
    """GPUs on a tree of links. The fabric's rate stated here is the port's nominal one; a protocol
    delivers less (`params/protocols.yaml`)."""

    label: str
    gpu: Gpu
    topology: Topology
    source: str


def read_clusters() -> dict[str, Cluster]:
    """All clusters by name."""
    clusters: dict[str, Cluster] = read_yaml(PARAMS / "clusters.yaml", dict[str, Cluster])
    return clusters


def cluster(name: str) -> Cluster:
    """One cluster by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("cluster", name, read_clusters())
