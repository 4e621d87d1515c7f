"""The iterations of one configuration: which are recorded, and when there are enough of them."""

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
from repro.train.pacing import PacedTimers, hold_passes, pass_times_s, slower_than_alone
from repro.train.records import RankRecord, Report, Span, TrainingRun
from repro.train.training import Training

# An iteration in which the machine kept more than this share of it from a rank is longer by as
# much, over any network. Ranks of an idle machine lack nothing.
MOST_LACKED = 0.1
# Until then other work is waited for.
PATIENCE_S = 600.0
# Computing is steady when it takes as long as in the iteration before, to this share, and there
# were so many passes.
_STEADY, _LEAST_PASSES, _MOST_WARMUP = 0.1, 3, 8


@dataclass(frozen=True)
class Iteration:
    """What a rank saw of one iteration, and `lacked_share`, what it waited for the machine."""

    start_s: float
    time_s: float
    phase_time_s: dict[str, float]
    timer_time_s: dict[str, float]
    messages: tuple[MessageEnd, ...]
    loss: float
    lacked_share: float
    transfers: tuple[Transfer, ...] = ()

    @property
    def communication_s(self) -> float:
        """Time of the phases that the papers' timers show as communication."""
        return sum(self.phase_time_s[phase] for phase in COMMUNICATION)


@dataclass(frozen=True)
class _OfAllRanks:
    """An iteration's mean time and share of communication over ranks, and the most that a rank
    lacked; `waited_s` is how long an undisturbed iteration has been waited for."""

    time_s: float
    communication: float
    lacked_share: float
    waited_s: float


@dataclass
class Series:
    """Recorded iterations of one configuration on this rank, of so many micro batches each, and
    what lay between them."""

    microbatches: int
    iterations: list[Iteration] = field(default_factory=list)
    of_all_ranks: list[_OfAllRanks] = field(default_factory=list)
    discarded: int = 0
    validations: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    def ended(self, run: TrainingRun) -> bool:
        """Whether there are as many as are needed; the same on all ranks."""
        recorded, most = len(self.iterations), run.most_iterations or run.iterations
        return recorded >= most or (recorded >= run.iterations and self.precise(run))

    def precise(self, run: TrainingRun) -> bool:
        """Whether their mean is known as well as is asked."""
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
        slower: float,
        before_s: dict[str, float],
        peak_memory_bytes: int,
    ) -> RankRecord:
        """All of it, and what the rank held."""
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
            lacked_share=tuple(one.lacked_share for one in self.of_all_ranks),
            discarded=self.discarded,
            ended_precise=self.precise(state.run),
            slower=slower,
        )


@dataclass(frozen=True)
class Watch:
    """Repeats iterations that other work on the machine disturbed, and says what goes on.

    `one` iterates over so many micro batches.
    """

    one: Callable[[int], Iteration]
    report: Report
    series: Sequence[Series]
    run: TrainingRun

    def say(self, words: str = "") -> None:
        """Report the iterations so far, of those that are recorded at least."""
        done = sum(min(len(one.iterations), self.run.iterations) for one in self.series)
        self.report(done, words)

    def warm_up(self, timers: Timers, alone_s: Sequence[float]) -> tuple[int, float]:
        """Iterate until computing takes as long as the time before.

        From then on passes of an emulated GPU take as long as they did then on the ranks of the
        same stage, and never less than `alone_s` lets expect. Passes have to be steady, however
        many there are: an emulated GPU warms up on as many micro batches as fill the pipeline. GPUs
        iterate as often as they are asked to.

        Returns
        -------
        iterations, slower
            How many there were, and how many times longer passes are than `alone_s`, which is what
            they take one rank with the whole model; 1 where that is not known.
        """
        self.say("warming up")
        most = max(one.microbatches for one in self.series)
        if not isinstance(timers, PacedTimers):
            for _ in range(self.run.warmup):
                self.one(most)
            return self.run.warmup, 1.0
        stage, done = parallel_state.get_pipeline_model_parallel_rank(), 0
        # Of the passes of an iteration: forward, backward, optimizer.
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
                ways = max(self.run.pipeline_parallel, self.run.expert_parallel)
                split = ways > 1 or self.run.distributed_optimizer
                slower = slower_than_alone(warm_s, alone_s, step_split=split)
                # Links are proven at the rates for `alone_s`: they may be slower, but not faster.
                hold_passes(timers, (warm_s[stage] / min(slower, 1.0)).tolist())
                return done, max(slower, 1.0)
            before_s = now_s

    def record(self, into: Series) -> None:
        """Iterate until one iteration was not disturbed, and record it.

        Raises
        ------
        ReproError
            Other work disturbed all of them for `PATIENCE_S`.
        """
        began, busy = time.monotonic(), ""
        while True:
            found = self.one(into.microbatches)
            agreed = _agreed(found, time.monotonic() - began)
            if agreed.lacked_share <= MOST_LACKED:
                break
            into.discarded += 1
            if dist.get_rank() == 0:
                busy = find_cpu_competitor()
                self.say(f"waiting, the machine is busy: {busy}")
            if agreed.waited_s > PATIENCE_S:
                raise ReproError(
                    f"other work has kept ranks from computing for {PATIENCE_S / 60:g} minutes: "
                    f"they lacked {agreed.lacked_share:.0%} of an iteration, {MOST_LACKED:.0%} is "
                    f"what is let pass{'; ' + busy if busy else ''}; stop it and run again: what "
                    "is finished stays"
                )
        into.iterations.append(found)
        into.of_all_ranks.append(agreed)
        self.say()


def _by_stage(stage: int, own_s: list[float]) -> FloatArray:
    """Medians (stage, pass) over the ranks of each pipeline stage, the same on every rank."""
    table = _on_all_ranks([float(stage), *own_s])
    stages = np.unique(table[:, 0])
    return np.array([np.median(table[table[:, 0] == one, 1:], axis=0) for one in stages])


def _agreed(found: Iteration, waited_s: float) -> _OfAllRanks:
    """What all ranks' views of an iteration come to, the same on every rank."""
    own = [found.time_s, found.communication_s, found.lacked_share, waited_s]
    table = _on_all_ranks(own)
    time_s, communication_s = table[:, :2].mean(axis=0).tolist()
    lacked, waited = table[:, 2:].max(axis=0).tolist()
    return _OfAllRanks(time_s, communication_s / time_s, lacked, waited)


def _on_all_ranks(own: list[float]) -> FloatArray:
    """A row of numbers of each rank."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mine = torch.tensor(own, dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    table: FloatArray = torch.stack(rows).cpu().numpy()
    return table
