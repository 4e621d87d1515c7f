"""Train: set a run up, iterate with every phase timed, save and validate every so often."""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.timers import Timers
from megatron.core.transformer.module import Float16Module, MegatronModule

from repro.corpus.datasets import build_datasets
from repro.train.batches import batches
from repro.train.checkpoint import save_checkpoint
from repro.train.cpu_compat import cpu_as_cuda
from repro.train.models import DTYPES, build_model, transformer_config
from repro.train.phases import create_timers, read_phases
from repro.train.records import PHASES, RankRecord, Span, TrainingRun
from repro.train.steps import Batch, forward_step

LEARNING_RATE = 1e-4
GRADIENT_CLIP = 1.0


@dataclass(frozen=True)
class Training:
    """A run that is set up: everything one iteration needs on this rank."""

    run: TrainingRun
    scratch: Path
    module: MegatronModule
    model: DistributedDataParallel
    optimizer: MegatronOptimizer
    timers: Timers
    training: Iterator[Batch]
    validation: Iterator[Batch]


def device_scope() -> AbstractContextManager[None]:
    """The scope in which Megatron-Core runs on this machine's device: nothing on a GPU."""
    return nullcontext() if torch.cuda.is_available() else cpu_as_cuda()


def train(
    run: TrainingRun, scratch: Path, report: Callable[[int], None] = lambda _: None
) -> RankRecord:
    """Train one configuration on this rank and return what it measured.

    The process groups exist (`repro.train.groups`). Checkpoints and dataset indices go below
    `scratch`, a folder all ranks see. `report` is called with the number of finished iterations,
    warm-up included, after each.

    Batches are loaded between iterations, outside the clock: what is measured is computing and
    communicating.
    """
    with device_scope():
        return _loop(set_up(run, scratch), report)


def set_up(run: TrainingRun, scratch: Path) -> Training:
    """Build model, optimizer and data of a run; every rank starts from the same weights."""
    rank, ranks = parallel_state.get_data_parallel_rank(), dist.get_world_size()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    torch.manual_seed(run.seed)
    # Without a GPU there is no CUDA generator to keep; the inference tracker keeps none.
    model_parallel_cuda_manual_seed(run.seed, inference_rng_tracker=not gpu, force_reset_rng=True)
    timers = create_timers()
    config = transformer_config(run.shape, run.precision, timers)
    config.finalize_model_grads_func = _synchronise_gradients(timers)
    module = build_model(run.family, run.shape, config).to(device)
    if run.precision != "fp32":
        module = Float16Module(config, module)
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            overlap_grad_reduce=False,
            use_distributed_optimizer=False,
            grad_reduce_in_fp32=run.precision == "fp32",
            check_for_nan_in_grad=False,
        ),
        module,
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=LEARNING_RATE,
            fp16=run.precision == "fp16",
            bf16=run.precision == "bf16",
            params_dtype=DTYPES[run.precision],
            clip_grad=GRADIENT_CLIP,
        ),
        [model],
    )
    _fuse(optimizer)
    if run.precision == "fp16":
        config.grad_scale_func = optimizer.scale_loss
    config.no_sync_func = model.no_sync
    per_iteration = run.micro_batch_size * run.microbatches * ranks
    training, validation = build_datasets(
        run.family,
        run.corpus,
        sequence_length=run.shape.sequence_length,
        decoder_sequence_length=run.shape.decoder_sequence_length,
        train_samples=per_iteration * (run.warmup + run.iterations),
        valid_samples=run.micro_batch_size * ranks * max(1, run.validation_batches),
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
        batches(training, run.micro_batch_size, rank, ranks, device),
        batches(validation, run.micro_batch_size, rank, ranks, device),
    )


def _fuse(optimizer: MegatronOptimizer) -> None:
    """Step all parameters in one kernel, as Apex does, where torch stands in for it."""
    if isinstance(optimizer.optimizer, torch.optim.Adam | torch.optim.AdamW):
        for group in optimizer.optimizer.param_groups:
            group.update(fused=True, foreach=False)


def _synchronise_gradients(timers: Timers) -> Callable[..., None]:
    """Megatron-Core's gradient sync between two barriers, each under a timer of its own.

    The barrier in front makes the sync's time wire time: whoever is early waits there. The one
    behind makes it the collective's time: it is over when the last rank has its gradients, while a
    ring's ranks finish one after another.
    """

    def synchronise(model: Any, num_tokens: Any = None, **groups: Any) -> None:
        timers("straggler-wait").start()
        dist.barrier()
        timers("straggler-wait").stop()
        timers("gradient-sync").start()
        finalize_model_grads(model, num_tokens, **groups)
        dist.barrier()
        timers("gradient-sync").stop()

    return synchronise


def forward_backward(
    state: Training, data: Iterator[Batch], *, forward_only: bool = False, microbatches: int
) -> float:
    """One pass through Megatron-Core's schedule; the mean loss of this rank's micro batches."""
    run = state.run
    losses = get_forward_backward_func()(
        forward_step_func=forward_step(run.family),
        data_iterator=data,
        model=[state.model],
        num_microbatches=microbatches,
        seq_length=run.shape.sequence_length,
        micro_batch_size=run.micro_batch_size,
        decoder_seq_length=run.shape.decoder_sequence_length,
        forward_only=forward_only,
    )
    return sum(float(entry["loss"]) for entry in losses) / len(losses)


def _loop(state: Training, report: Callable[[int], None]) -> RankRecord:
    run = state.run
    starts: list[float] = []
    durations: list[float] = []
    phases: dict[str, list[float]] = {phase: [] for phase in PHASES}
    losses: list[float] = []
    validations: list[float] = []
    spans: list[Span] = []
    for iteration in range(1, run.warmup + run.iterations + 1):
        data = iter([next(state.training) for _ in range(run.microbatches)])
        dist.barrier()
        start = time.monotonic()
        loss = iterate(state, data)
        duration = time.monotonic() - start
        times = read_phases(state.timers, duration)
        report(iteration)
        if iteration <= run.warmup:
            continue
        starts.append(start)
        durations.append(duration)
        losses.append(loss)
        for phase, seconds in times.items():
            phases[phase].append(seconds)
        recorded = iteration - run.warmup
        if run.validate_every and recorded % run.validate_every == 0:
            begin = time.monotonic()
            validations.append(_validate(state))
            spans.append(Span("validation", begin, time.monotonic()))
        if run.save_every and recorded % run.save_every == 0:
            begin = time.monotonic()
            _save(state, recorded)
            spans.append(Span("checkpoint", begin, time.monotonic()))
    return RankRecord(
        rank=dist.get_rank(),
        start_s=tuple(starts),
        iteration_time_s=tuple(durations),
        phase_time_s={phase: tuple(values) for phase, values in phases.items()},
        loss=tuple(losses),
        validation_loss=tuple(validations),
        spans=tuple(spans),
        parameters=sum(weight.numel() for weight in state.module.parameters()),
        gradient_bytes=sum(
            weight.main_grad.numel() * weight.main_grad.element_size()
            for weight in state.module.parameters()
        ),
        peak_memory_bytes=_peak_memory_bytes(),
    )


def iterate(state: Training, data: Iterator[Batch]) -> float:
    """One iteration, with the phases under their timers; the rank's mean loss."""
    state.model.zero_grad_buffer()
    state.optimizer.zero_grad()
    loss = forward_backward(state, data, microbatches=state.run.microbatches)
    state.timers("optimizer").start()
    state.optimizer.step()
    state.timers("optimizer").stop()
    torch.cuda.synchronize()
    return loss


def _validate(state: Training) -> float:
    state.model.eval()
    with torch.no_grad():
        loss = forward_backward(
            state, state.validation, forward_only=True, microbatches=state.run.validation_batches
        )
    state.model.train()
    state.timers("forward-compute").reset()
    # Megatron-LM reports the mean over the data-parallel ranks: one small all-reduce.
    mean = torch.tensor([loss], device=next(state.module.parameters()).device)
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def _save(state: Training, iteration: int) -> None:
    module = state.module.module if isinstance(state.module, Float16Module) else state.module
    save_checkpoint(state.scratch / "checkpoint", module, state.optimizer, iteration)


def _peak_memory_bytes() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
