"""Recording of iterations: discard contended ones, stop at the target precision."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.timers import Timers

from repro.catalog.phases import COMMUNICATION, P2P_TIMERS, PHASES
from repro.errors import ReproError
from repro.observe.cpu_contention import find_cpu_competitor
from repro.observe.messages import MessageEnd
from repro.observe.nic import FloatArray
from repro.observe.precision import half_width, reached_target_precision
from repro.observe.transfers import Transfer
from repro.train.pacing import PacedTimers, hold_passes, pass_times_s, slowed
from repro.train.records import RankRecord, Report, Span, TrainingRun
from repro.train.training import Training

# An iteration is discarded if a rank lost more than this fraction of it to other processes; about 0
# on an idle machine.
LARGEST_CONTENTION = 0.1
# Time to wait for an iteration without contention.
PATIENCE_S = 600.0
# Computing is steady if its time changes by at most this fraction between two iterations, after at
# least so many passes; the warm-up ends after the most iterations.
_STEADY, _LEAST_PASSES, _MOST_WARMUP = 0.1, 3, 8


@dataclass(frozen=True)
class Iteration:
    """One iteration on a rank; it lost `contention_fraction` of the time to other processes."""

    start_s: float
    time_s: float
    phase_time_s: dict[str, float]
    timer_time_s: dict[str, float]
    messages: tuple[MessageEnd, ...]
    loss: float
    contention_fraction: float
    transfers: tuple[Transfer, ...] = ()

    @property
    def communication_s(self) -> float:
        """Time of the phases that the papers count as communication."""
        return sum(self.phase_time_s[phase] for phase in COMMUNICATION)


@dataclass(frozen=True)
class _OfAllRanks:
    """Mean time and communication fraction of an iteration over ranks, and the most contention.

    `waited_s` is the time since the first attempt.
    """

    time_s: float
    communication: float
    contention_fraction: float
    waited_s: float


@dataclass
class Series:
    """Recorded iterations of one configuration on this rank, and the spans between them."""

    microbatches: int
    iterations: list[Iteration] = field(default_factory=list)
    of_all_ranks: list[_OfAllRanks] = field(default_factory=list)
    discarded: int = 0
    validations: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def ended(self, run: TrainingRun) -> bool:
        """Return whether enough iterations are recorded; the same on all ranks."""
        recorded, most = len(self.iterations), run.most_iterations or run.iterations
        return recorded >= most or (recorded >= run.iterations and self.precise(run))

    def precise(self, run: TrainingRun) -> bool:
        """Return whether the means have the target precision."""
        times = [one.time_s for one in self.of_all_ranks]
        shares = [one.communication for one in self.of_all_ranks]
        return (
            reached_target_precision(times, run.half_interval)
            and half_width(shares) <= run.half_interval
        )

    def record(
        self,
        state: Training,
        warmup: int,
        slowdown_factor: float,
        before_s: dict[str, float],
        peak_memory_bytes: int,
    ) -> RankRecord:
        """Return the record of this rank."""
        done = self.iterations
        return RankRecord(
            rank=dist.get_rank(),
            start_s=tuple(one.start_s for one in done),
            iteration_time_s=tuple(one.time_s for one in done),
            phase_time_s={name: tuple(one.phase_time_s[name] for one in done) for name in PHASES},
            loss=tuple(one.loss for one in done),
            validation_loss=tuple(self.validations),
            spans=tuple(self.spans),
            parameters=sum(weight.numel() for weight in state.module.parameters()),
            peak_memory_bytes=peak_memory_bytes,
            timer_time_s={
                name: tuple(one.timer_time_s[name] for one in done) for name in P2P_TIMERS
            },
            messages=tuple(
                replace(end, iteration=number)
                for number, one in enumerate(done)
                for end in one.messages
            ),
            transfers=tuple(
                replace(transfer, iteration=number)
                for number, one in enumerate(done)
                for transfer in one.transfers
            ),
            pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
            **state.held_bytes(),
            warmup=warmup,
            before_s=before_s,
            contention_fraction=tuple(one.contention_fraction for one in self.of_all_ranks),
            discarded=self.discarded,
            reached_target_precision=self.precise(state.run),
            slowdown_factor=slowdown_factor,
        )


@dataclass(frozen=True)
class Watch:
    """Repetition of contended iterations; `one` runs an iteration of so many micro batches."""

    one: Callable[[int], Iteration]
    report: Report
    series: Sequence[Series]
    run: TrainingRun

    def say(self, text: str = "") -> None:
        """Report the iterations so far, up to the fewest that are recorded."""
        done = sum(min(len(one.iterations), self.run.iterations) for one in self.series)
        self.report(done, text)

    def warm_up(self, timers: Timers, passes_s: Sequence[Sequence[float]]) -> tuple[int, float]:
        """Iterate until the compute time is steady.

        After that, each pass of an emulated GPU takes its time in `passes_s`, all of them longer by
        one factor if ranks need more; other passes take the steady time of their stage's ranks. An
        emulated GPU warms up with as many micro batches as fill the pipeline. GPUs run the
        requested number of iterations.

        Returns
        -------
        iterations, slowdown_factor
            Number of iterations, and the time of passes over `passes_s`.
        """
        self.say("warming up")
        most = max(one.microbatches for one in self.series)
        if not isinstance(timers, PacedTimers):
            for _ in range(self.run.warmup):
                self.one(most)
            return self.run.warmup, 1.0
        stage, done = parallel_state.get_pipeline_model_parallel_rank(), 0
        # Numbers of passes per iteration: forward, backward, optimizer.
        often = np.array([most, most, 1])
        before_s: FloatArray = np.full(1, np.inf)
        few = min(most, self.run.pipeline_parallel)
        while True:
            self.one(few)
            done += 1
            now_s = _by_stage(stage, pass_times_s(timers))
            change = abs(float((now_s @ often).sum() / (before_s * often).sum()) - 1)
            enough = done >= self.run.warmup and done * few >= _LEAST_PASSES
            if enough and (change <= _STEADY or done >= _MOST_WARMUP):
                warm_s = (now_s + before_s) / 2
                held_s, slowdown_factor = slowed(warm_s, passes_s)
                hold_passes(timers, held_s[stage].tolist())
                return done, slowdown_factor
            before_s = now_s

    def record(self, into: Series) -> None:
        """Iterate until one iteration has little contention, and record it.

        Raises
        ------
        ReproError
            No iteration had little contention for `PATIENCE_S`.
        """
        began, busy = time.monotonic(), ""
        while True:
            found = self.one(into.microbatches)
            agreed = _agreed(found, time.monotonic() - began)
            if agreed.contention_fraction <= LARGEST_CONTENTION:
                break
            into.discarded += 1
            if dist.get_rank() == 0:
                busy = find_cpu_competitor()
                self.say(f"waiting, the machine is busy: {busy}")
            if agreed.waited_s > PATIENCE_S:
                raise ReproError(
                    f"no clean iteration in {PATIENCE_S / 60:g} minutes: a rank lost "
                    f"{agreed.contention_fraction:.0%} of the time to other processes (limit "
                    f"{LARGEST_CONTENTION:.0%}){'; ' + busy if busy else ''}; fix: stop them and "
                    "run again, finished results are kept"
                )
        into.iterations.append(found)
        into.of_all_ranks.append(agreed)
        self.say()


def _by_stage(stage: int, own_s: list[float]) -> FloatArray:
    """Return medians (stage, pass) over the ranks of each pipeline stage; same on all ranks."""
    table = _on_all_ranks([float(stage), *own_s])
    stages = np.unique(table[:, 0])
    return np.array([np.median(table[table[:, 0] == one, 1:], axis=0) for one in stages])


def _agreed(found: Iteration, waited_s: float) -> _OfAllRanks:
    """Return the means and largest values over all ranks; the same on every rank."""
    own = [found.time_s, found.communication_s, found.contention_fraction, waited_s]
    table = _on_all_ranks(own)
    time_s, communication_s = table[:, :2].mean(axis=0).tolist()
    contention, waited = table[:, 2:].max(axis=0).tolist()
    return _OfAllRanks(time_s, communication_s / time_s, contention, waited)


def _on_all_ranks(own: list[float]) -> FloatArray:
    """Gather a row of numbers from each rank."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    table: FloatArray = torch.stack(rows).cpu().numpy()
    return table
