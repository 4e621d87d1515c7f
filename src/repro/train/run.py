"""Training loop: iterations with every phase timed, validations and checkpoints."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker

from repro.catalog.models.papers import Shape
from repro.observe.communication_log import logging
from repro.observe.interleaving import InterleavedRuns
from repro.observe.memory import peak_bytes, reset_peak
from repro.train.allowance import keep_to_allowance
from repro.train.megatron.checkpoint import save_checkpoint
from repro.train.megatron.cpu_compat import cpu_as_cuda
from repro.train.megatron.steps import Batch, forward_step
from repro.train.megatron.t5_stage import t5_shapes
from repro.train.pacing import lacked_so_far_s
from repro.train.phases import read_phases, reset_timers
from repro.train.records import EmulatedGpu, RankRecord, Report, Span, TrainingRun
from repro.train.series import Iteration, Series, Watch
from repro.train.training import Training, set_up

# Rank without limits of speed and memory.
_NOT_HELD = EmulatedGpu()


def device_scope() -> AbstractContextManager[None]:
    """Return the scope in which Megatron-Core runs on this machine's device; empty on a GPU."""
    return nullcontext() if torch.cuda.is_available() else cpu_as_cuda()


def train(
    run: TrainingRun,
    scratch: Path,
    report: Report = lambda *_: None,
    gpu: EmulatedGpu = _NOT_HELD,
    turns: InterleavedRuns | None = None,
    microbatches: Sequence[int] = (),
) -> tuple[RankRecord, ...]:
    """Train one configuration on this rank, and return a record for each interleaved run.

    `microbatches` are each interleaved run's, if they differ from the configuration's.

    The process groups exist (`repro.train.megatron.groups`). Checkpoints and dataset indices are
    written below `scratch`, a folder that all ranks see. `report` is called after each iteration
    with the recorded iterations so far, up to the fewest that are recorded.

    Batches are loaded between iterations, outside the clock: only compute and communication are
    measured.

    Raises
    ------
    ReproError
        The model cannot be split into so many stages, or such a pipeline cannot be saved. Or other
        processes kept ranks from computing for too long.
    MemoryError
        The run exceeded the memory of the emulated GPU.
    """
    with device_scope():
        # This run would reuse memory of an earlier run's buffer without measuring it.
        parallel_state.get_global_memory_buffer().buffer.clear()
        get_moe_layer_wise_logging_tracker().clear()
        turns = turns or InterleavedRuns()
        began = time.monotonic()
        held = reset_peak()
        state = set_up(run, scratch, gpu.cores)
        set_up_s = time.monotonic() - began
        look: Callable[[], None] = (
            (lambda: None)
            if gpu.memory_bytes is None
            else keep_to_allowance(state.module, held, gpu.memory_bytes)
        )

        def one(number: int) -> Iteration:
            found = _one(state, number)
            look()
            return found

        series = [Series(number) for number in microbatches or [run.microbatches] * turns.count]
        watch = Watch(one, report, series, run)
        warmup, turns.slowdown = watch.warm_up(state.timers, gpu.passes_s)
        before_s = {"set-up": set_up_s, "warm-up": time.monotonic() - began - set_up_s}
        with logging(state.log) if state.log else nullcontext():
            for turn in turns.round_robin(lambda turn: series[turn].ended(run)):
                watch.record(series[turn])
                _between(state, series[turn])
        taken = peak_bytes() - held
        return tuple(one.record(state, warmup, turns.slowdown, before_s, taken) for one in series)


def _one(state: Training, microbatches: int) -> Iteration:
    """Run one iteration with its phases after a barrier of all ranks."""
    run = state.run
    batches = [next(state.training) for _ in range(microbatches)]
    dist.barrier()
    if state.log:
        state.log.take(0)
    lacked_s = lacked_so_far_s(state.timers)
    start = time.monotonic()
    loss = iterate(state, batches)
    duration = time.monotonic() - start
    lacked = (lacked_so_far_s(state.timers) - lacked_s) / duration
    phases, timers = read_phases(state.timers, duration, run.pipeline_parallel > 1)
    ends = () if state.communicator is None else tuple(state.communicator.take(0))
    transfers = tuple(state.log.take(0)) if state.log else ()
    return Iteration(start, duration, phases, timers, ends, loss, lacked, transfers)


def _between(state: Training, series: Series) -> None:
    """Validate and save after the requested numbers of recorded iterations."""
    run, recorded = state.run, len(series.iterations)
    if run.validate_every and recorded % run.validate_every == 0:
        begin = time.monotonic()
        series.validations.append(_validate(state))
        series.spans.append(Span("validation", begin, time.monotonic()))
    if run.save_every and recorded % run.save_every == 0:
        begin = time.monotonic()
        _save(state, recorded)
        series.spans.append(Span("checkpoint", begin, time.monotonic()))


def forward_backward(
    state: Training, data: Iterator[Batch], *, forward_only: bool = False, microbatches: int
) -> float:
    """Run Megatron-Core's schedule once, and return the mean loss of this replica's micro batches.

    The loss is NaN on all stages but the last, because they do not compute it.
    """
    run = state.run
    with state.compressor.at_work() if state.compressor else nullcontext():
        losses = get_forward_backward_func()(
            forward_step_func=forward_step(run.family, run.attention),
            data_iterator=data,
            model=[state.model],
            num_microbatches=microbatches,
            seq_length=run.shape.sequence_length,
            micro_batch_size=run.micro_batch_size,
            decoder_seq_length=run.shape.decoder_sequence_length,
            forward_only=forward_only,
            **_between_stages(state),
        )
    return sum(float(entry["loss"]) for entry in losses) / len(losses) if losses else math.nan


def _between_stages(state: Training) -> dict[str, Any]:
    """Return the arguments that only Megatron-Core's pipeline schedule needs."""
    if state.communicator is None:
        return {}
    run, stage = state.run, parallel_state.get_pipeline_model_parallel_rank()
    arguments: dict[str, Any] = {
        "p2p_communicator": state.communicator,
        "pg_collection": ProcessGroupCollection.use_mpu_process_groups(),
    }
    if run.family == "t5" and isinstance(run.shape, Shape):
        arguments["adjust_tensor_shapes_fn"] = t5_shapes(
            run.shape, run.micro_batch_size, run.pipeline_parallel, stage
        )
    return arguments


def iterate(state: Training, batches: Sequence[Batch]) -> float:
    """Run an iteration over micro batches with timed phases; return `forward_backward`'s loss."""
    state.zero_grad()
    loss = forward_backward(state, iter(batches), microbatches=len(batches))
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
    reset_timers(state.timers)
    if state.communicator is not None:
        state.communicator.take(0)
    # Megatron-LM reports the mean over the data-parallel ranks: one small all-reduce.
    counted = loss if parallel_state.is_pipeline_last_stage() else 0.0
    total = torch.tensor([counted], device=next(state.module.parameters()).device)
    dist.all_reduce(total)
    # Tensor-parallel ranks of a replica have the same loss.
    counted_by: int = dist.get_world_size() // state.run.pipeline_parallel
    return float(total) / counted_by


def _save(state: Training, iteration: int) -> None:
    module = state.module.module if isinstance(state.module, Float16Module) else state.module
    save_checkpoint(state.scratch / "checkpoint", module, state.optimizer, iteration)
