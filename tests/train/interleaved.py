"""One iteration of an interleaved pipeline: Megatron-Core's own schedule and messages."""

from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.timers import Timers

from repro.observe.communication_log import CommunicationLog, logging
from repro.observe.transfers import Transfer
from repro.train.megatron.models import transformer_config
from repro.train.megatron.steps import forward_step
from repro.train.phases import (
    create_timers,
    running_phase,
    time_parameter_all_gather,
    timed_gradient_sync,
)
from repro.train.records import TrainingRun


def interleaved_chunks(
    run: TrainingRun, virtual_stages: int, timers: Timers
) -> list[DistributedDataParallel]:
    """This rank's model chunks, so many; until `pass_through` ends."""
    parallel_state.set_virtual_pipeline_model_parallel_world_size(virtual_stages)
    model_parallel_cuda_manual_seed(1, inference_rng_tracker=True, force_reset_rng=True)
    config = transformer_config(run, timers)
    config.virtual_pipeline_model_parallel_size = virtual_stages
    config.microbatch_group_size_per_vp_stage = run.pipeline_parallel
    config.finalize_model_grads_func = timed_gradient_sync(timers)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    return [
        DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                use_distributed_optimizer=run.distributed_optimizer, grad_reduce_in_fp32=True
            ),
            GPTModel(
                config,
                get_gpt_layer_local_spec(),
                run.shape.vocabulary_size,
                run.shape.sequence_length,
                pre_process=(stage, chunk) == (0, 0),
                post_process=(stage, chunk) == (run.pipeline_parallel - 1, virtual_stages - 1),
                share_embeddings_and_output_weights=True,
                vp_stage=chunk,
            ),
        )
        for chunk in range(virtual_stages)
    ]


def pass_through(chunks: list[DistributedDataParallel], run: TrainingRun) -> None:
    """All forward and backward passes of an iteration."""
    tokens = torch.zeros(run.micro_batch_size, run.shape.sequence_length, dtype=torch.long)
    names = ("tokens", "labels", "position_ids")
    batch = {name: tokens for name in names} | {"loss_mask": torch.ones_like(tokens)}
    get_forward_backward_func()(
        forward_step_func=forward_step("gpt"),
        data_iterator=[iter([batch] * run.microbatches) for _ in chunks],
        model=chunks,
        num_microbatches=run.microbatches,
        seq_length=run.shape.sequence_length,
        micro_batch_size=run.micro_batch_size,
        forward_only=False,
    )
    parallel_state.set_virtual_pipeline_model_parallel_world_size(None)


def log_interleaved(run: TrainingRun, virtual_stages: int) -> list[Transfer]:
    """A rank's task: what one iteration with so many model chunks a stage communicates."""
    timers = create_timers()
    chunks = interleaved_chunks(run, virtual_stages, timers)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            clip_grad=1.0,
            use_distributed_optimizer=run.distributed_optimizer,
        ),
        chunks,
        use_gloo_process_groups=False,
    )
    if run.distributed_optimizer:
        for chunk in chunks:
            time_parameter_all_gather(chunk, timers)
    log = CommunicationLog(partial(running_phase, timers, True))
    with logging(log):
        pass_through(chunks, run)
        timers("optimizer").start()
        optimizer.step()
        timers("optimizer").stop()
    return log.take(0)
