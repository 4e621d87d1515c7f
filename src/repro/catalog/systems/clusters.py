"""The clusters under study (`params/clusters.yaml`)."""

from pydantic import field_validator

from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.protocols import read_protocols
from repro.catalog.systems.topology import Topology
from repro.paths import PARAMS


class Cluster(Entry):
    """GPUs on a tree of links. The fabric's rate stated here is the ports' nominal one; a protocol
    delivers less (`params/protocols.yaml`).

    `gpu` is a name of `params/gpus.yaml`, `calibration` one of `params/calibration/`.
    `protocols` are those of `params/protocols.yaml` whose rates are this cluster's.
    `network` is a network of `params/links.yaml` that was calibrated on this GPU (by its label),
    for runs without a protocol: its peak between nodes replaces the nominal rate times the
    calibration's efficiency, and data-parallel collectives take what its model says wherever it was
    measured on as many ranks and nodes.
    `fabric_ring_sharing` says that rings with several ranks in a node were measured to share NICs
    there (`repro.predict.network.transfers`).
    """

    label: str
    gpu: str
    calibration: str
    topology: Topology
    protocols: tuple[str, ...] = ()
    network: str | None = None
    fabric_ring_sharing: bool = False
    source: str

    @field_validator("protocols")
    @classmethod
    def _with_rates(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        rated = read_protocols()
        for name in names:
            if name not in rated:
                raise ValueError(f"{name} has no rate; choose from: {', '.join(rated)}")
        return names

    @property
    def device(self) -> Gpu:
        """The GPU's data sheet."""
        return gpu(self.gpu)


def read_clusters() -> dict[str, Cluster]:
    """All clusters by name."""
    clusters: dict[str, Cluster] = read_yaml(PARAMS / "clusters.yaml", dict[str, Cluster])
    return clusters


def cluster(name: str) -> Cluster:
    """One cluster by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("cluster", name, read_clusters())
