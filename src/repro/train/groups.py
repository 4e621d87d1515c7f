"""Join and leave the process groups of a run."""

from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state

# A rank that died is noticed by its launcher; this only bounds what a collective may take.
_TIMEOUT = timedelta(minutes=10)


def join_groups(rank: int, ranks: int, address: str, port: int) -> None:
    """Join `ranks` data-parallel ranks that meet at rank 0's address: NCCL on GPUs, else gloo."""
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=rank,
        world_size=ranks,
        timeout=_TIMEOUT,
    )
    parallel_state.initialize_model_parallel()


def leave_groups() -> None:
    """Leave them, so that the process can join others."""
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
