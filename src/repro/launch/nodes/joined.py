"""A process's place among the ranks that srun or torchrun started."""

from collections.abc import Mapping
from dataclasses import dataclass

from repro.errors import ReproError

# By torchrun, and by srun.
_RANK, _RANKS, _LOCAL = (
    ("RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "SLURM_NTASKS"),
    ("LOCAL_RANK", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Joined:
    """This process's place, and where the ranks meet."""

    rank: int
    ranks: int
    local_rank: int
    address: str
    port: int


def joined(environment: Mapping[str, str]) -> Joined:
    """Read the place from what torchrun sets, or srun and the job beside it.

    Raises
    ------
    ReproError
        Nothing started ranks here, or it is not said where they meet.
    """
    return Joined(
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
    raise ReproError(f"{' or '.join(names)} is not set: ranks are started by srun or torchrun")
