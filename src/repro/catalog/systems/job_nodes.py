"""Nodes of a job: a GPU by name or data sheet, with links and NICs of a cluster or one's own."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.catalog.reading import read_yaml
from repro.catalog.systems.clusters import cluster as read_cluster
from repro.catalog.systems.gpus import Gpu, read_gpus
from repro.errors import ReproError

_NICS = re.compile(r"(?:(\d{1,4})\s*[x*]\s*)?(\d{1,6}(?:\.\d{1,6})?)")
# GPUs of a node where its maker joins more of them by fast links.
_USUAL = 8


@dataclass(frozen=True)
class JobNode:
    """Node of a job.

    Attributes
    ----------
    device
        GPU with the links and NICs of the node.
    known
        Whether the GPU is one of `params/gpus.yaml`.
    gpus_per_node
        GPUs of the node.
    nic_gbps
        Rate of all its NICs, in Gbit/s.
    gpus
        GPUs of the cluster; None for nodes of one's own.
    notes
        What was not given and by which rule it was filled; one phrase each.
    """

    device: Gpu
    known: bool
    gpus_per_node: int
    nic_gbps: float
    gpus: int | None = None
    notes: tuple[str, ...] = ()


def read_node(
    gpu: str | None, cluster: str | None, gpus_per_node: int | None, nic: str | None
) -> JobNode:
    """Return the node that the fields of a job describe.

    Raises
    ------
    ReproError
        A name is unknown, a data sheet is not valid, or fields contradict each other.
    """
    if cluster is not None:
        if gpus_per_node or nic:
            raise ReproError("cluster beside gpus_per_node or nic; fix: give either")
        return _node_of_cluster(gpu, cluster)
    if gpu is None:
        raise ReproError("no GPU; fix: give gpu (params/gpus.yaml or a data sheet) or cluster")
    notes: list[str] = []
    known = Path(gpu).suffix not in (".yaml", ".yml")
    device: Gpu = read_gpus()[_gpu_name(gpu)] if known else read_yaml(Path(gpu), Gpu)
    if known and gpu != _gpu_name(gpu):
        notes.append(f"gpu {_gpu_name(gpu)}, which alone is a {gpu}")
    per_node = gpus_per_node or min(device.domain_gpus, _USUAL)
    if gpus_per_node is None:
        notes.append(f"{per_node} GPUs per node, as not given")
    if nic is None:
        notes.append(f"a NIC of {device.nic_gbps:g} Gbit/s per GPU, of its maker's systems")
        node_gbps = device.nic_gbps * per_node
        return JobNode(device, known, per_node, node_gbps, notes=tuple(notes))
    node_gbps = nics_gbps(nic)
    changed: dict[str, Any] = {"nic_gbps": node_gbps / per_node}
    if device.domain_gpus <= _USUAL:
        changed["domain_gpus"] = per_node
    device = device.model_copy(update=changed)
    return JobNode(device, known, per_node, node_gbps, notes=tuple(notes))


def _node_of_cluster(gpu: str | None, cluster: str) -> JobNode:
    entry = read_cluster(cluster)
    node, fabric = entry.topology.levels[-2:]
    if gpu is not None and read_gpus()[_gpu_name(gpu)] != entry.device:
        raise ReproError(f"gpu {gpu}: {cluster} has {entry.device.label}; fix: omit it")
    per_node = entry.topology.gpus_per_node
    changed: dict[str, Any] = {
        "domain_gpus": per_node,
        "link_gbytes_per_s": node.link_gbps / 8,
        "nic_gbps": fabric.link_gbps / per_node,
    }
    device = entry.device.model_copy(update=changed)
    return JobNode(device, True, per_node, fabric.link_gbps, entry.topology.gpus)


def _gpu_name(given: str) -> str:
    """Return the GPU with this name, label or published name, or the only one with all its words.

    A similar one is never taken: another memory size is another GPU.
    """
    gpus = read_gpus()
    for name, entry in gpus.items():
        if given in (name, entry.label, *entry.published_as):
            return name
    wanted = _words(given)
    found = [name for name, entry in gpus.items() if wanted <= _words(f"{name} {entry.label}")]
    if len(found) > 1 and wanted:
        raise ReproError(f"gpu {given!r:.40} is one of: {', '.join(found)}; fix: give one of them")
    if not found or not wanted:
        raise ReproError(
            f"unknown GPU {given!r:.40}; choose from: {', '.join(gpus)}, or give a data sheet"
        )
    return found[0]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def nics_gbps(text: str) -> float:
    """Read the NICs of a node, such as 8x400 or 200, in Gbit/s.

    Raises
    ------
    ReproError
        The text is no number of NICs and rate.
    """
    found = _NICS.fullmatch(text.strip())
    rate = float(found[2]) * int(found[1] or 1) if found else 0.0
    if not rate:
        raise ReproError(f"nic {text!r:.40}; write the NICs of a node as 8x400 (Gbit/s each)")
    return rate
