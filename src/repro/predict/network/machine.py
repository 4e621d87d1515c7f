"""Machine of the performance model: one GPU's data sheet, and levels of links with rates."""

from dataclasses import dataclass, replace

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.protocols import Protocol
from repro.predict.network.links import NetworkCalibration, measured_network
from repro.predict.parameters import Parameters

_BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True)
class Links:
    """Links of one level of a topology.

    Attributes
    ----------
    vertex_gpus : int
        GPUs below each vertex that has such a link; 1 on the lowest level.
    bytes_per_s : float
        Rate of collectives over one link in each direction, before ring effects.
    latency_s : float
        One-way latency of a small message, in addition to the costs of every collective.
    measured : bool
        Whether the rate was measured on this fabric, so that it contains congestion.
    """

    name: str
    vertex_gpus: int
    bytes_per_s: float
    latency_s: float = 0.0
    measured: bool = False


@dataclass(frozen=True)
class Machine:
    """A GPU and the levels of links between GPUs, lowest first; the last one is the fabric.

    `network` is the fitted curve of collectives measured there, if any. With `ring_sharing`, rings
    with several ranks per node share NICs.
    """

    gpu: Gpu
    levels: tuple[Links, ...]
    ring_sharing: bool = False
    network: NetworkCalibration | None = None

    @property
    def gpus_per_node(self) -> int:
        """GPUs below one vertex of the fabric."""
        return self.levels[-1].vertex_gpus


def machine(cluster: Cluster, parameters: Parameters, protocol: Protocol | None = None) -> Machine:
    """Build the machine of a cluster with a protocol between nodes.

    Parameters
    ----------
    protocol : Protocol, optional
        Protocol whose effective rate and latency replace the cluster's measured network, and the
        fabric's nominal rate times `fabric_efficiency`. None for clusters with one protocol.

    Raises
    ------
    ReproError
        The network that the cluster names was not calibrated.

    Examples
    --------
    >>> from repro.catalog.systems.clusters import cluster
    >>> from repro.catalog.systems.protocols import protocol
    >>> from repro.predict.parameters import calibration
    >>> entry = cluster("pinnacles")
    >>> machine(entry, calibration(entry.calibration).parameters, protocol("ipoib")).gpus_per_node
    2
    """
    network = measured_network(cluster) if protocol is None else None
    measured = network.fabric_bytes_per_s if network else None
    levels, vertex_gpus = [], 1
    top = cluster.topology.levels[-1]
    for level in cluster.topology.levels:
        rate = level.link_gbps * _BYTES_PER_GBIT
        links = Links(level.name, vertex_gpus, rate * parameters.collective_efficiency)
        if level is top and measured is not None:
            links = replace(links, bytes_per_s=measured, measured=True)
        elif level is top and protocol is not None:
            rate, latency_s = protocol.effective_gbps * _BYTES_PER_GBIT, 1e-6 * protocol.latency_us
            links = replace(links, bytes_per_s=rate, latency_s=latency_s, measured=True)
        elif level is top:
            links = replace(links, bytes_per_s=rate * parameters.fabric_efficiency)
        levels.append(links)
        vertex_gpus *= level.members
    return Machine(cluster.device, tuple(levels), cluster.fabric_ring_sharing, network)
