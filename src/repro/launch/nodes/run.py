"""Run an experiment's cases on real nodes: this machine's GPUs, or a Slurm partition."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from repro.catalog.systems.nodes import Nodes
from repro.errors import NotRunHere
from repro.launch.cases import Case, run_cases
from repro.launch.journal import Journal
from repro.launch.nodes.partition import run_on_partition
from repro.launch.nodes.step import in_steps
from repro.launch.progress import progress
from repro.results.merging import merge


def run_on_nodes(
    cases: Sequence[Case[Any]], nodes: Nodes, journal: Journal, folder: Path, title: str
) -> tuple[xr.Dataset, dict[str, str]]:
    """Run cases where `nodes` says.

    Parameters
    ----------
    folder
        For what ranks and jobs write, logs above all; with Slurm all nodes must see it.
    title
        Of the progress bar.

    Returns
    -------
    dataset, not_run
        The union of the cases that were run, with the attribute `ran_on`: a JSON list of what each
        case ran on and how its protocol was proven. And what could not be run, with the reasons.

    Raises
    ------
    NotRunHere
        This machine has neither GPUs nor Slurm.
    ReproError
        A run or a job failed, or traffic took another way than the protocol's.
    """
    by_nodes, not_run = _placed(cases, nodes)
    placed = [case for found in by_nodes.values() for case in found]
    with progress(placed, title) as bar:
        if nodes.launch == "slurm":
            datasets, missing = run_on_partition(by_nodes, nodes, journal, folder, bar)
        else:
            with in_steps(nodes, _torchrun, folder) as run:
                datasets, missing = run_cases(placed, journal, run, bar.report)
    ran_on = [json.loads(part.attrs["ran_on"]) for part in datasets if "ran_on" in part.attrs]
    dataset = merge(datasets) if datasets else xr.Dataset()
    return dataset.assign_attrs(ran_on=json.dumps(ran_on)), {**not_run, **missing}


def nodes_for(ranks: int, each: int) -> int:
    """The fewest nodes of `each` GPUs that have room for so many ranks, which fill them evenly."""
    return -(-ranks // each)


def gpus_per_node(nodes: Nodes) -> int:
    """Ranks that a node has.

    Raises
    ------
    NotRunHere
        They are this machine's GPUs, and it has none.
    """
    # A notebook that trains elsewhere does without it, and two seconds of importing it.
    import torch

    here = torch.cuda.device_count()
    if nodes.launch == "local" and nodes.shapes == "full" and not here:
        raise NotRunHere(
            "this machine has no GPU; run on one that has, or set `launch: slurm` in "
            "params/nodes.yaml where there is a partition of GPU nodes (docs/cluster.md)"
        )
    return nodes.gpus_per_node or max(here, 1)


def _placed(
    cases: Sequence[Case[Any]], nodes: Nodes
) -> tuple[dict[int, list[Case[Any]]], dict[str, str]]:
    """Cases by the number of nodes that they fill, and why the others have no place."""
    each = gpus_per_node(nodes)
    most = nodes.slurm.nodes if nodes.launch == "slurm" and nodes.slurm else 1
    by_nodes: dict[int, list[Case[Any]]] = {}
    not_run = {}
    for case in cases:
        number = nodes_for(case.order.ranks, each)
        if number > most:
            not_run[f"{case.order.ranks} GPUs"] = (
                f"params/nodes.yaml has {most} node{'s' * (most > 1)} of {each}"
            )
        elif case.order.ranks % number:
            not_run[f"{case.order.ranks} GPUs"] = f"they do not fill nodes of {each} evenly"
        else:
            by_nodes.setdefault(number, []).append(case)
    return by_nodes, not_run


def _torchrun(ranks: int, folder: Path) -> list[str]:
    """Ranks on this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [
        *launcher,
        f"--nproc-per-node={ranks}",
        "-m",
        "repro.launch.nodes.node_rank",
        str(folder),
    ]
