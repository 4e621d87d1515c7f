"""Train: iterate a run with every phase timed, save and validate every so often."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.observe.memory import begin_peak, peak_bytes
from repro.observe.messages import MessageEnd
from repro.train.allowance import keep_to_allowance
from repro.train.checkpoint import save_checkpoint
from repro.train.cpu_compat import cpu_as_cuda
from repro.train.phases import read_phases, reset_timers
from repro.train.records import RankRecord, Span, TrainingRun
from repro.train.steps import Batch, forward_step
from repro.train.t5_stage import t5_shapes
from repro.train.training import Training, set_up


def device_scope() -> AbstractContextManager[None]:
    """The scope in which Megatron-Core runs on this machine's device: nothing on a GPU."""
    return nullcontext() if torch.cuda.is_available() else cpu_as_cuda()


def train(
    run: TrainingRun,
    scratch: Path,
    report: Callable[[int], None] = lambda _: None,
    cores: float | None = None,
    memory_bytes: int | None = None,
) -> RankRecord:
    """Train one configuration on this rank and return what it measured.

    The process groups exist (`repro.train.groups`). Checkpoints and dataset indices go below
    `scratch`, a folder all ranks see. `report` is called with the number of finished iterations,
    warm-up included, after each. `cores` is an emulated GPU's share of the machine, at whose pace
    it computes, and `memory_bytes` what the run may take beside what the process holds.

    Batches are loaded between iterations, outside the clock: what is measured is computing and
    communicating.

    Raises
    ------
    ReproError
        The model cannot be split into so many stages, or such a pipeline cannot be saved.
    MemoryError
        The run took more than `memory_bytes`.
    """
    with device_scope():
        # What an earlier run left in it, this one would use without counting it.
        parallel_state.get_global_memory_buffer().buffer.clear()
        held = begin_peak()
        state = set_up(run, scratch, cores)
        look: Callable[[], None] = (
            (lambda: None)
            if memory_bytes is None
            else keep_to_allowance(state.module, held, memory_bytes)
        )
        return _loop(state, report, held, look)


def forward_backward(
    state: Training, data: Iterator[Batch], *, forward_only: bool = False, microbatches: int
) -> float:
    """One pass through Megatron-Core's schedule; the mean loss of this replica's micro batches.

    It is NaN on stages that do not compute it: all but the last.
    """
    run = state.run
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
    """What Megatron-Core's pipeline schedule needs beside what all its schedules do."""
    if state.communicator is None:
        return {}
    run, stage = state.run, parallel_state.get_pipeline_model_parallel_rank()
    arguments: dict[str, Any] = {
        "p2p_communicator": state.communicator,
        "pg_collection": ProcessGroupCollection.use_mpu_process_groups(),
    }
    if run.family == "t5":
        arguments["adjust_tensor_shapes_fn"] = t5_shapes(
            run.shape, run.micro_batch_size, run.pipeline_parallel, stage
        )
    return arguments


def _loop(
    state: Training, report: Callable[[int], None], held: int, look: Callable[[], None]
) -> RankRecord:
    run = state.run
    starts: list[float] = []
    durations: list[float] = []
    phases: dict[str, list[float]] = {phase: [] for phase in PHASES}
    timers: dict[str, list[float]] = {name: [] for name in P2P_TIMERS}
    messages: list[MessageEnd] = []
    losses: list[float] = []
    validations: list[float] = []
    spans: list[Span] = []
    for iteration in range(1, run.warmup + run.iterations + 1):
        data = iter([next(state.training) for _ in range(run.microbatches)])
        dist.barrier()
        start = time.monotonic()
        loss = iterate(state, data)
        duration = time.monotonic() - start
        look()
        phase_times, timer_times = read_phases(state.timers, duration, run.pipeline_parallel > 1)
        ends = [] if state.communicator is None else state.communicator.take(len(starts))
        report(iteration)
        if iteration <= run.warmup:
            continue
        starts.append(start)
        durations.append(duration)
        losses.append(loss)
        messages += ends
        for series, times in ((phases, phase_times), (timers, timer_times)):
            for name, seconds in times.items():
                series[name].append(seconds)
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
        gradient_bytes=sum(weight.main_grad.nbytes for weight in state.module.parameters()),
        peak_memory_bytes=peak_bytes() - held,
        timer_time_s={name: tuple(values) for name, values in timers.items()},
        messages=tuple(messages),
        pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
        adam_state_bytes=sum(
            moments[name].nbytes
            for moments in state.optimizer.optimizer.state.values()
            for name in ("exp_avg", "exp_avg_sq")
        ),
    )


def iterate(state: Training, data: Iterator[Batch]) -> float:
    """One iteration, with the phases under their timers; what `forward_backward` returns."""
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
    reset_timers(state.timers)
    if state.communicator is not None:
        state.communicator.take(0)
    # Megatron-LM reports the mean over the data-parallel ranks: one small all-reduce.
    counted = loss if parallel_state.is_pipeline_last_stage() else 0.0
    total = torch.tensor([counted], device=next(state.module.parameters()).device)
    dist.all_reduce(total)
    replicas: int = parallel_state.get_data_parallel_world_size()
    return float(total) / replicas


def _save(state: Training, iteration: int) -> None:
    module = state.module.module if isinstance(state.module, Float16Module) else state.module
    save_checkpoint(state.scratch / "checkpoint", module, state.optimizer, iteration)
