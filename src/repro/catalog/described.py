"""Clusters described by GPU, GPUs of a node and NICs, instead of a name in params/clusters.yaml."""

from repro.catalog.job_inputs import nics_gbps, read_hardware
from repro.catalog.systems.clusters import Cluster
from repro.catalog.systems.gpus import gpu_name
from repro.catalog.systems.topology import Level, Topology

# More than any cluster has; a description does not state its nodes.
_NODES = 10**6


def described_cluster(
    gpu: str, gpus_per_node: int | None, nic: str | None
) -> tuple[Cluster, list[str]]:
    """Return a cluster, and a note for each part that was not given.

    Parameters
    ----------
    gpu : str
        Name of a GPU as its driver, a table or params/gpus.yaml calls it.
    gpus_per_node, nic
        As in `repro.catalog.jobs.Job`.

    Raises
    ------
    ReproError
        The GPU is unknown, or `nic` is no number of NICs and rate.

    Examples
    --------
    >>> described_cluster("h100", 8, "8x400")[0].topology.levels[-1].link_gbps
    3200.0
    """
    where = read_hardware(gpu, gpus_per_node=gpus_per_node, nic=nic)
    device, per_node, node_gbps = where.device, where.gpus_per_node, where.nic_gbps
    links = (
        Level(name="node", members=per_node, link_gbps=8 * device.link_gbytes_per_s),
        Level(name="fabric", members=_NODES, link_gbps=node_gbps),
    )
    described = Cluster(
        label=f"{per_node} {device.label} a node, {node_gbps:g} Gbit/s",
        gpu=gpu_name(gpu),
        calibration="a100-megatron",
        topology=Topology(levels=links),
        nic_gbps=nics_gbps(nic.rpartition("x")[2]) if nic else device.nic_gbps,
        source="description",
    )
    return described, [*where.notes]
