"""Sweeps of collectives over clusters, protocols and sizes (`params/collectives.yaml`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.studies.selection import SOURCES, choose_several
from repro.catalog.systems.clusters import Cluster, cluster, read_clusters
from repro.catalog.systems.protocols import read_protocols, read_transports

# Process groups: one of all ranks; one per node; one per GPU index, with that GPU of every node.
Layout = Literal["world", "node", "rail"]
Element = Literal["fp32", "fp16", "bf16"]
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
)


class SweptCluster(Entry):
    """Protocols between a cluster's nodes, and numbers of its GPUs, two or more."""

    protocols: tuple[str, ...]
    gpus: tuple[Annotated[int, Field(ge=2)], ...]


class SweepProfile(Entry):
    """Collectives, sizes and repeats, as in `repro.collectives.records.CollectiveSweep`."""

    collectives: tuple[str, ...]
    sizes_bytes: tuple[PositiveInt, ...]
    warmup: PositiveInt
    repeats: PositiveInt
    most_repeats: PositiveInt
    longest_call_s: PositiveFloat
    in_place: bool

    @field_validator("collectives")
    @classmethod
    def _check_collectives(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            choose("collective", name, {known: known for known in COLLECTIVES})
        return names

    @field_validator("sizes_bytes")
    @classmethod
    def _ascending(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise ValueError("sizes do not ascend; fix: sort them without duplicates")
        return sizes


class Collectives(Entry):
    """Sweeps of collectives on all clusters, with their profiles.

    `rate_scale` is the emulated rate that represents one unit of a real link's.
    """

    title: str
    source: str
    rate_scale: PositiveFloat
    dtype: Element
    clusters: dict[str, SweptCluster]
    layouts: tuple[Layout, ...]
    profiles: dict[str, SweepProfile]

    @model_validator(mode="after")
    def _check_clusters(self) -> "Collectives":
        for name, entry in self.clusters.items():
            topology = choose("cluster", name, read_clusters()).topology
            for protocol in entry.protocols:
                choose("protocol", protocol, read_protocols())
            if max(entry.gpus) > topology.gpus:
                raise ValueError(f"{name} has {topology.gpus} GPUs, not {max(entry.gpus)}")
        return self


def read_collectives_sweep() -> Collectives:
    """Read the sweeps of collectives."""
    value: Collectives = read_params("collectives.yaml", Collectives)
    return value


@dataclass(frozen=True)
class SweepSelection:
    """Validated part of the sweeps."""

    cluster_name: str
    sweeps: Collectives
    profile_name: str
    profile: SweepProfile
    source: str
    protocols: tuple[str, ...]
    gpus: tuple[int, ...]
    collectives: tuple[str, ...]

    @property
    def cluster(self) -> Cluster:
        """Cluster on which the collectives run."""
        return cluster(self.cluster_name)


def select_sweep(
    cluster_name: str,
    source: str = "testbed",
    protocol: str = "all",
    gpus: str | int | Sequence[int] = "all",
    collectives: str | Sequence[str] = "all",
    profile: str = "default",
) -> SweepSelection:
    """Validate a notebook's parameters.

    Parameters
    ----------
    cluster_name : str
        A cluster of params/collectives.yaml.
    source, protocol, gpus, profile
        As in `repro.catalog.studies.selection.select`.
    collectives
        `all` of the profile's; one; several separated by commas; or a sequence.

    Raises
    ------
    ReproError
        A value is unknown; the message lists the choices.
    """
    sweeps = read_collectives_sweep()
    swept = choose("cluster", cluster_name, sweeps.clusters)
    chosen = choose("profile", profile, sweeps.profiles)
    protocols = swept.protocols
    if source == "cluster" and protocol != "all":
        protocols = tuple(read_transports())
    return SweepSelection(
        cluster_name,
        sweeps,
        profile,
        chosen,
        choose("source", source, {name: name for name in SOURCES}),
        choose_several("protocol", protocol, {name: name for name in protocols}),
        choose_several("number of GPUs", gpus, {str(count): count for count in swept.gpus}),
        choose_several("collective", collectives, {name: name for name in chosen.collectives}),
    )
