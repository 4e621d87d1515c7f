"""A cluster as the performance model sees it: one GPU, and levels of links with their rates."""

from dataclasses import dataclass, replace

from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.protocols import Protocol
from repro.predict.network.links import NetworkCalibration, measured_network
from repro.predict.parameters import Parameters

_BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True)
class Links:
    """One level of a topology.

    Attributes
    ----------
    vertex_gpus : int
        GPUs below each vertex whose link this is: 1 on the lowest level.
    bytes_per_s : float
        What collectives get through one vertex's link in each direction, before ring effects.
    latency_s : float
        One way of a small message over the level, beside what every collective costs.
    measured : bool
        Whether the rate is one of collectives on this very fabric, which has its congestion in it.
    """

    name: str
    vertex_gpus: int
    bytes_per_s: float
    latency_s: float = 0.0
    measured: bool = False


@dataclass(frozen=True)
class Machine:
    """A GPU's data sheet and the levels of links between GPUs, lowest first; the last one is the
    fabric between nodes. `network` is what collectives were measured to take there, if they were.
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
    """The machine that a cluster is with a protocol between nodes.

    Parameters
    ----------
    protocol : Protocol, optional
        Its effective rate and latency replace the fabric's nominal rate times
        `fabric_efficiency`, and the cluster's measured network; None where a cluster has one
        protocol only.

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
