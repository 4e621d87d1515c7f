"""Checkpoints of a training run, by megatron.core.dist_checkpointing."""

import queue
import shutil
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.module import MegatronModule


def save_checkpoint(
    folder: Path, model: MegatronModule, optimizer: MegatronOptimizer, iteration: int
) -> None:
    """Write model and optimizer state of all ranks, in place of the folder's content.

    This is a collective: every rank calls it, and returns when the checkpoint is complete.
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
    with mock.patch.object(
        filesystem_async, "_get_write_results_queue", lambda: results, create=True
    ):
        dist_checkpointing.save(state, str(folder), strategy)
    dist.barrier()
