"""Clusters under study (`params/clusters.yaml`)."""

from pydantic import PositiveFloat, field_validator

from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.protocols import read_protocols
from repro.catalog.systems.topology import Topology


class Cluster(Entry):
    """GPUs on a tree of links, with the nominal rate of the fabric's ports.

    A protocol delivers less than that rate (`params/protocols.yaml`). `gpu` names an entry of
    `params/gpus.yaml`, `calibration` a file of `params/calibration/`. `protocols` lists the
    protocols whose rates were measured on this cluster. `network` names a network of
    `params/links.yaml` that was calibrated on this GPU (by its label). Runs without a protocol use
    it: its peak between nodes replaces the nominal rate times the calibration's efficiency.
    Data-parallel collectives use its model wherever it was measured on as many ranks and nodes.
    `fabric_ring_sharing` states that rings with several ranks per node were measured to share NICs
    (`repro.predict.network.collectives`). `nic_gbps` is the rate of one NIC; without it, that of
    the GPU's port in its maker's systems.
    """

    label: str
    gpu: str
    calibration: str
    topology: Topology
    protocols: tuple[str, ...] = ()
    network: str | None = None
    fabric_ring_sharing: bool = False
    nic_gbps: PositiveFloat | None = None
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
        """Data sheet of the GPU."""
        return gpu(self.gpu)

    @property
    def one_nic_gbps(self) -> float:
        """Rate of one NIC in Gbit/s."""
        return min(self.nic_gbps or self.device.nic_gbps, self.topology.levels[-1].link_gbps)


def read_clusters() -> dict[str, Cluster]:
    """Read all clusters by name."""
    clusters: dict[str, Cluster] = read_params("clusters.yaml", dict[str, Cluster])
    return clusters


def cluster(name: str) -> Cluster:
    """Return a cluster by name; an unknown name is a `ReproError` that lists the choices.

    Examples
    --------
    >>> cluster("pinnacles").topology.gpus
    8
    """
    return choose("cluster", name, read_clusters())
