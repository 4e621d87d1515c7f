"""Checkpoints of a training run, by megatron.core.dist_checkpointing."""

import os
import queue
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import MegatronModule

from repro.errors import ReproError


def save_checkpoint(
    folder: Path, model: MegatronModule, optimizer: MegatronOptimizer, iteration: int
) -> None:
    """Write model and optimizer state of all ranks, in place of the folder's content.

    This is a collective: every rank calls it, and returns when the checkpoint is complete.

    Raises
    ------
    ReproError
        The process that writes was killed, for example for memory.
    """
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    dist.barrier()
    weights = model.sharded_state_dict()
    state = {
        "model": weights,
        "optimizer": optimizer.sharded_state_dict(weights),
        "iteration": iteration,
    }
    # One writer per rank: its file is small, and each writer is one more process.
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    # Only asynchronous saves need a server process. Megatron-Core starts a queue server per rank
    # for every save, which takes seconds and outlives a killed rank.
    results: queue.Queue[object] = queue.Queue()
    unserved = mock.patch.object(
        filesystem_async, "_get_write_results_queue", lambda: results, create=True
    )
    with unserved, _noticing_killed_writers():
        dist_checkpointing.save(state, str(folder), strategy)
    dist.barrier()


@contextmanager
def _noticing_killed_writers() -> Iterator[None]:
    """Raise an error when a child is killed: Megatron-Core waits forever for what it would send."""

    def child_ended(*_: object) -> None:
        with suppress(ChildProcessError):
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if child is not None and child.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                name = signal.Signals(child.si_status).name
                raise ReproError(
                    f"the process that writes the checkpoint was killed by {name}; fix: free "
                    "memory, then run the same command again to resume"
                )

    before = signal.signal(signal.SIGCHLD, child_ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)
