"""Measure collectives on ranks that srun or torchrun started: one call of this in each of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from repro.catalog.collectives import SweepSelection
from repro.collectives.records import SweepRecord
from repro.collectives.sweep import sweep
from repro.errors import ReproError
from repro.launch.collectives import asked_for, describe
from repro.launch.messages import Outcome
from repro.observe.nic import NicSeries
from repro.results.collectives import sweep_dataset
from repro.results.store import write_dataset
from repro.train.groups import join_groups, leave_groups
from repro.train.run import device_scope

_PORT = 29500
# By torchrun, and by srun.
_RANK, _RANKS = ("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")
_LOCAL, _LOCAL_RANKS = (
    ("LOCAL_RANK", "SLURM_LOCALID"),
    ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"),
)


@dataclass(frozen=True)
class Joined:
    """This process's place among the ranks, and where they meet."""

    rank: int
    ranks: int
    local_rank: int
    ranks_per_node: int
    address: str
    port: int


def joined(environment: Mapping[str, str]) -> Joined:
    """Read the place from what torchrun or srun sets.

    Raises
    ------
    ReproError
        Nothing started ranks here, or it is not said where they meet.
    """
    address = environment.get("MASTER_ADDR")
    ranks = _number(environment, _RANKS)
    if address is None:
        if ranks > 1:
            raise ReproError(
                "MASTER_ADDR is not set; in a Slurm job first "
                "`export MASTER_ADDR=$(scontrol show hostnames | head -n 1)`"
            )
        address = "127.0.0.1"
    return Joined(
        rank=_number(environment, _RANK),
        ranks=ranks,
        local_rank=_number(environment, _LOCAL),
        ranks_per_node=_number(environment, _LOCAL_RANKS),
        address=address,
        port=int(environment.get("MASTER_PORT", _PORT)),
    )


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int:
    for name in names:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    raise ReproError(
        f"{' or '.join(names)} is not set: start ranks with "
        "`torchrun --nproc-per-node N --no-python repro sweep CLUSTER`, or "
        "`srun --ntasks-per-node N repro sweep CLUSTER`"
    )


def sweep_joined(selection: SweepSelection, path: Path) -> bool:
    """Measure with all ranks of the job; rank 0 writes the dataset. Whether this is rank 0.

    Raises
    ------
    ReproError
        The ranks cannot be found, or a collective returned wrong data.
    """
    place = joined(os.environ)
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank)
    chosen = replace(selection, gpus=(place.ranks,))
    asked = asked_for(chosen, place.ranks, place.ranks_per_node)
    with device_scope():
        join_groups(place.rank, place.ranks, place.address, place.port)
        record = sweep(asked)
        gathered: list[SweepRecord | None] = [None] * place.ranks
        dist.all_gather_object(gathered, record)
        leave_groups()
    if place.rank != 0:
        return False
    records = tuple(one for one in gathered if one is not None)
    outcome = Outcome((), NicSeries(), (), 0.0, records)
    transport = chosen.protocols[0]
    dataset = sweep_dataset("cluster", transport, place.ranks, asked, outcome)
    write_dataset(describe(dataset, chosen, {}), path)
    return True
