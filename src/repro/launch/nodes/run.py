"""Runs of requests on real nodes: this machine's GPUs, or a Slurm partition."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from repro.catalog.systems.nodes import Nodes
from repro.errors import NotRunHere
from repro.launch.execution import progress, run_requests
from repro.launch.nodes.partition import run_on_partition
from repro.launch.nodes.step import in_steps
from repro.launch.request import Request
from repro.launch.store import Store


def run_on_nodes(
    requests: Sequence[Request[Any]], nodes: Nodes, store: Store, folder: Path, title: str
) -> tuple[list[xr.Dataset], dict[str, str]]:
    """Run requests that the store lacks on the given nodes.

    Parameters
    ----------
    folder
        Folder for the logs of ranks and jobs; with Slurm all nodes must see it.
    title
        Title of the progress bar.

    Returns
    -------
    datasets, not_run
        One dataset per request that was run, whose attribute `ran_on` is a JSON object of devices,
        versions and the proof of its protocol. And what was not run, with the reasons.

    Raises
    ------
    NotRunHere
        This machine has neither GPUs nor Slurm.
    ReproError
        A run or a job failed, or traffic took another network than the protocol's.
    """
    by_nodes, not_run = _by_nodes(requests, nodes)
    placed = [request for found in by_nodes.values() for request in found]
    with progress(placed, title) as bar:
        if nodes.launch == "slurm":
            datasets, missing = run_on_partition(by_nodes, nodes, store, folder, bar)
        else:
            with in_steps(nodes, _torchrun, folder) as run:
                datasets, missing = run_requests(placed, store, run, bar.report)
    return datasets, {**not_run, **missing}


def nodes_for(ranks: int, each: int) -> int:
    """Return the fewest nodes of `each` GPUs that hold so many ranks."""
    return -(-ranks // each)


def gpus_per_node(nodes: Nodes) -> int:
    """Return the ranks of a node.

    Raises
    ------
    NotRunHere
        This machine has no GPU.
    """
    # Importing torch takes seconds, which notebooks that train elsewhere save.
    import torch

    here = torch.cuda.device_count()
    if nodes.launch == "local" and nodes.shapes == "full" and not here:
        raise NotRunHere(
            "this machine has no GPU; run on one that has, or set `launch: slurm` in "
            "params/nodes.yaml where there is a partition of GPU nodes (docs/how_to/cluster.md)"
        )
    return nodes.gpus_per_node or max(here, 1)


def _by_nodes(
    requests: Sequence[Request[Any]], nodes: Nodes
) -> tuple[dict[int, list[Request[Any]]], dict[str, str]]:
    """Return requests by the number of nodes that they fill, and why the others cannot run."""
    each = gpus_per_node(nodes)
    most = nodes.slurm.nodes if nodes.launch == "slurm" and nodes.slurm else 1
    by_nodes: dict[int, list[Request[Any]]] = {}
    not_run = {}
    for request in requests:
        number = nodes_for(request.ranks, each)
        if number > most:
            not_run[f"{request.ranks} GPUs"] = (
                f"params/nodes.yaml has {most} node{'s' * (most > 1)} of {each}"
            )
        elif request.ranks % number:
            not_run[f"{request.ranks} GPUs"] = f"they do not fill nodes of {each} evenly"
        else:
            by_nodes.setdefault(number, []).append(request)
    return by_nodes, not_run


def _torchrun(ranks: int, folder: Path) -> list[str]:
    """Return the command that starts ranks on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [
        *launcher,
        f"--nproc-per-node={ranks}",
        "-m",
        "repro.launch.nodes.node_rank",
        str(folder),
    ]
