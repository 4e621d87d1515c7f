"""Process groups of a run: how ranks join and leave them."""

import gc
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from repro.catalog.models.papers import Family
from repro.catalog.models.stages import position_embedding_stages, word_embedding_stages
from repro.errors import ReproError

# Longest time of a collective; the launcher notices a rank that died.
_TIMEOUT = timedelta(minutes=10)
LOOPBACK = "127.0.0.1"


def join_groups(
    rank: int,
    ranks: int,
    address: str,
    port: int,
    pipeline_parallel: int = 1,
    family: Family = "gpt",
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
) -> None:
    """Join `ranks` ranks that connect to rank 0's address: NCCL on GPUs, else gloo.

    They are `pipeline_parallel` stages of `tensor_parallel` ranks each; the other factor of `ranks`
    is the number of data-parallel replicas. In Megatron-Core's order, tensor-parallel ranks are
    neighbours, then replicas of a stage. With d replicas of t ranks, a rank's stage is
    rank // (d t). The family decides which stages share embeddings. Experts are sharded across
    `expert_parallel` neighbours of a stage's replicas.

    Raises
    ------
    ReproError
        The ranks do not divide into pipelines, or the family does not divide into so many stages.
    """
    if ranks % (tensor_parallel * pipeline_parallel):
        raise ReproError(
            f"{ranks} ranks do not divide into pipelines of {pipeline_parallel} stages of "
            f"{tensor_parallel} ranks; change the ranks, pipeline_parallel or tensor_parallel"
        )
    _allow_sockets()
    word = word_embedding_stages(family, pipeline_parallel)
    position = position_embedding_stages(family, pipeline_parallel)
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo",
        init_method=None if address == LOOPBACK else f"tcp://{address}:{port}",
        store=_loopback_store(rank, ranks, port) if address == LOOPBACK else None,
        rank=rank,
        world_size=ranks,
        timeout=_TIMEOUT,
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor_parallel,
        pipeline_model_parallel_size=pipeline_parallel,
        expert_model_parallel_size=expert_parallel,
        # Gloo groups would resolve host names, and nothing here uses these groups.
        create_gloo_process_groups=False,
        get_embedding_ranks=lambda pipeline: [pipeline[stage] for stage in word],
        get_position_embedding_ranks=lambda pipeline: [pipeline[stage] for stage in position],
    )


def _loopback_store(rank: int, ranks: int, port: int) -> Any:
    """Return the store of ranks on this machine; torch itself would listen on all interfaces."""
    # The store closes the socket.
    listening = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    return dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, ranks, rank == 0, _TIMEOUT, master_listen_fd=listening, multi_tenant=True
    )


def _allow_sockets() -> None:
    """Raise the limit of open files to the user's maximum.

    Gloo keeps sockets of groups that were left, and 1024 are too few for a process that repeatedly
    forms groups.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def alone() -> Iterator[None]:
    """Join the groups of this process alone, within this scope."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        port = taken.getsockname()[1]
    join_groups(0, 1, LOOPBACK, port)
    try:
        yield
    finally:
        leave_groups()


def leave_groups() -> None:
    """Leave the groups, so that the process can join others."""
    # A finished run is a reference cycle, which keeps its groups and threads until it is collected.
    gc.collect()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
