"""Set-up of a training run: model, optimizer and data of one rank."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import (
    ChainedOptimizer,
    MegatronOptimizer,
    OptimizerConfig,
    get_megatron_optimizer,
)
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.timers import Timers
from megatron.core.transformer.module import Float16Module, MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import default_collate

from repro.corpus.datasets import build_datasets
from repro.errors import ReproError
from repro.observe.communication_log import CommunicationLog
from repro.train.compression.directions import Compressor, check_compression
from repro.train.megatron.communicator import RecordingCommunicator
from repro.train.megatron.exchange import time_exchanges
from repro.train.megatron.models import DTYPES, build_model, transformer_config
from repro.train.megatron.steps import Batch
from repro.train.partition.fully_shard import check_partition, partitioned
from repro.train.partition.optimizer import PartitionedOptimizer
from repro.train.phases import (
    create_timers,
    running_phase,
    time_parameter_all_gather,
    timed_gradient_sync,
)
from repro.train.records import TrainingRun

GRADIENT_CLIP = 1.0
# Distance between the seeds of two stages in Megatron-LM.
_SEEDS_PER_STAGE = 100
# Megatron-Core halves its 2^32 until fp16 holds the gradients, each time in an iteration without an
# optimizer step. That takes longer than a warm-up; fp16 holds the gradients with this scale.
_INITIAL_LOSS_SCALE = 2.0**12


@dataclass(frozen=True)
class Training:
    """State of a run on this rank: everything that one iteration needs.

    `model` is `module` in Megatron-Core's data parallelism, or `module` itself with a partition.
    `communicator` moves and logs the messages of a pipeline; None without one. `log` records
    communication, and `compressor` encodes it; None if not requested.
    """

    run: TrainingRun
    scratch: Path
    module: MegatronModule
    model: DistributedDataParallel | MegatronModule
    optimizer: MegatronOptimizer | PartitionedOptimizer
    timers: Timers
    communicator: RecordingCommunicator | None
    log: CommunicationLog | None
    compressor: Compressor | None
    training: Iterator[Batch]
    validation: Iterator[Batch]

    def zero_grad(self) -> None:
        """Set the gradients to zero."""
        if isinstance(self.model, DistributedDataParallel):
            self.model.zero_grad_buffer()
        self.optimizer.zero_grad()

    def held_bytes(self) -> dict[str, int]:
        """Bytes of the rank's gradients, Adam's moments, and weights without optimizer copies."""
        if isinstance(self.optimizer, PartitionedOptimizer):
            return {
                "weight_bytes": self.optimizer.weight_bytes,
                "gradient_bytes": self.optimizer.gradient_bytes,
                "adam_state_bytes": self.optimizer.moment_bytes,
            }
        weights = list(self.module.parameters())
        return {
            "weight_bytes": sum(weight.nbytes for weight in weights),
            "gradient_bytes": sum(weight.main_grad.nbytes for weight in weights),
            "adam_state_bytes": sum(
                moments[name].nbytes
                for part in optimizers(self.optimizer)
                for moments in part.optimizer.state.values()
                for name in ("exp_avg", "exp_avg_sq")
            ),
        }


def set_up(run: TrainingRun, scratch: Path, cores: float | None = None) -> Training:
    """Build model, optimizer and data of a run; replicas start from the same weights."""
    if run.distributed_optimizer and run.save_every:
        raise ReproError(
            f"save_every is {run.save_every}; checkpoints of the distributed optimizer are not "
            "supported; fix: set save_every to 0"
        )
    if run.family == "t5" and run.pipeline_parallel > 1 and run.save_every:
        raise ReproError(
            f"save_every is {run.save_every} and pipeline_parallel {run.pipeline_parallel}; "
            f"checkpoints of t5 pipelines are not supported; fix: set save_every to 0"
        )
    check_partition(run, torch.distributed.get_world_size())
    check_compression(run)
    replica = parallel_state.get_data_parallel_rank()
    replicas = parallel_state.get_data_parallel_world_size()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    seed = run.seed + _SEEDS_PER_STAGE * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    # Without a GPU there is no CUDA generator to keep; the inference tracker keeps none.
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not gpu, force_reset_rng=True)
    timers = create_timers(cores)
    compressor = Compressor(run.compression, timers) if run.compression else None
    config = transformer_config(run, timers)
    module = build_model(run.family, run.shape, config, run.attention).to(device)
    if run.precision != "fp32":
        module = Float16Module(config, module)
    if run.expert_parallel > 1:
        time_exchanges(module, timers)
    if run.partition is None:
        model, optimizer = _replicated(run, config, module, timers)
    else:
        model = module
        weights = compressor.weights if compressor else None
        optimizer = partitioned(
            module, run.partition, timers, run.learning_rate, GRADIENT_CLIP, weights
        )
        config.finalize_model_grads_func = timed_gradient_sync(
            timers, lambda *_, **__: optimizer.synchronise()
        )
    communicator = None
    if run.pipeline_parallel > 1:
        stages = parallel_state.get_pipeline_model_parallel_group()
        coder = compressor.pipeline if compressor else None
        communicator = RecordingCommunicator(stages, config, coder)
    log = None
    if run.log_communication:
        log = CommunicationLog(partial(running_phase, timers, run.pipeline_parallel > 1))
    per_iteration = run.micro_batch_size * run.microbatches * replicas
    training, validation = build_datasets(
        run.family,
        run.corpus,
        sequence_length=run.shape.sequence_length,
        decoder_sequence_length=run.shape.decoder_sequence_length,
        train_samples=per_iteration * (run.warmup + run.iterations),
        valid_samples=run.micro_batch_size * replicas * max(1, run.validation_batches),
        seed=run.seed,
        split=run.split,
        cache_dir=scratch / "indices",
    )
    return Training(
        run,
        scratch,
        module,
        model,
        optimizer,
        timers,
        communicator,
        log,
        compressor,
        _batches(training, run.micro_batch_size, replica, replicas, device),
        _batches(validation, run.micro_batch_size, replica, replicas, device),
    )


def _replicated(
    run: TrainingRun, config: TransformerConfig, module: MegatronModule, timers: Timers
) -> tuple[DistributedDataParallel, MegatronOptimizer]:
    """Return a model of which every replica has all weights and gradients, and its optimizer."""
    config.finalize_model_grads_func = timed_gradient_sync(timers)
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            overlap_grad_reduce=False,
            use_distributed_optimizer=run.distributed_optimizer,
            grad_reduce_in_fp32=run.precision == "fp32",
            check_for_nan_in_grad=False,
        ),
        module,
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=run.learning_rate,
            fp16=run.precision == "fp16",
            bf16=run.precision == "bf16",
            params_dtype=DTYPES[run.precision],
            clip_grad=GRADIENT_CLIP,
            initial_loss_scale=_INITIAL_LOSS_SCALE,
            use_distributed_optimizer=run.distributed_optimizer,
        ),
        [model],
        use_gloo_process_groups=False,
    )
    _fuse(optimizer)
    if run.distributed_optimizer:
        time_parameter_all_gather(model, timers)
    if run.precision == "fp16":
        config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = model.no_sync
    return model, optimizer


def _batches(
    dataset: Any, micro_batch_size: int, replica: int, replicas: int, device: torch.device
) -> Iterator[Batch]:
    """Yield micro batches without end; all replicas together read the dataset in order.

    With n replicas and b sequences, micro batch i of replica r begins at sequence (i n + r) b of
    the dataset. So one replica needs n times the micro batches to read the data of n replicas.
    Every stage of a replica has the same.
    """
    position = replica * micro_batch_size
    while True:
        rows = [dataset[(position + row) % len(dataset)] for row in range(micro_batch_size)]
        yield {name: value.to(device) for name, value in default_collate(rows).items()}
        position += replicas * micro_batch_size


def _fuse(optimizer: MegatronOptimizer) -> None:
    """Step all parameters in one kernel, as Apex does, if torch replaces Apex."""
    for part in optimizers(optimizer):
        if isinstance(part.optimizer, torch.optim.Adam | torch.optim.AdamW):
            for group in part.optimizer.param_groups:
                group.update(fused=True, foreach=False)


def optimizers(optimizer: MegatronOptimizer) -> Sequence[MegatronOptimizer]:
    """Return the optimizers that one consists of: sharded experts have their own."""
    return optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]
