"""Rank, world size and address of a process that srun or torchrun started."""

from collections.abc import Mapping
from dataclasses import dataclass

from repro.errors import ReproError

# Variables of torchrun and of srun.
_RANK, _RANKS, _LOCAL = (
    ("RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "SLURM_NTASKS"),
    ("LOCAL_RANK", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class RankEnvironment:
    """Rank of this process, and the address at which all ranks connect."""

    rank: int
    ranks: int
    local_rank: int
    address: str
    port: int


def rank_environment(environment: Mapping[str, str]) -> RankEnvironment:
    """Read the variables of torchrun, or of srun and the job.

    Raises
    ------
    ReproError
        A variable is missing.
    """
    return RankEnvironment(
        rank=int(_value(environment, _RANK)),
        ranks=int(_value(environment, _RANKS)),
        local_rank=int(_value(environment, _LOCAL)),
        address=_value(environment, ("MASTER_ADDR",)),
        port=int(_value(environment, ("MASTER_PORT",))),
    )


def _value(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if environment.get(name):
            return environment[name]
    raise ReproError(f"{' or '.join(names)} is not set; fix: start ranks with srun or torchrun")
