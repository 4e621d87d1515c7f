"""Specification of a training run, and the record of each of its ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from repro.catalog.models.papers import Family
from repro.catalog.models.trainable import AnyShape
from repro.catalog.parallel.codecs import Compression
from repro.catalog.parallel.partitions import Partition
from repro.catalog.systems.nodes import Attention, Precision
from repro.observe.messages import MessageEnd
from repro.observe.transfers import Transfer

# Function that shows how many steps are done, and a text.
Report = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainingRun:
    """One configuration to train.

    Attributes
    ----------
    family, shape
        Model family and size.
    precision
        Precision of parameters and activations, and of the gradients in reductions.
    micro_batch_size
        Sequences in one forward pass of one replica.
    microbatches
        Forward passes of one replica in one iteration; gradients accumulate over them.
    warmup
        Fewest iterations that are dropped; an emulated GPU warms up until its compute is steady.
    iterations
        Fewest iterations that are recorded.
    most_iterations
        Most iterations that are recorded, until both means have the target precision; None: exactly
        `iterations`.
    half_interval
        Target precision: half of the 95 % interval, of the mean iteration time relative to it, and
        of the mean communication fraction.
    save_every, validate_every
        Recorded iterations between two checkpoints, and between two validations; 0: never.
    validation_batches
        Forward passes of one validation.
    corpus
        Folder of the enwiki artefacts (tokenizers and indexed datasets).
    split
        Weights of training and validation data, as in `params/corpus.yaml`.
    seed
        Seed of the initial weights and of the order of the data.
    pipeline_parallel
        Stages that a replica is split into; 1 for no pipeline.
    tensor_parallel
        Ranks across which each stage's matrices are sharded.
    sequence_parallel
        Whether these ranks also shard operations between the matrices by positions. Megatron-Core
        needs layer norms of Transformer Engine or Apex for it.
    expert_parallel
        Neighbouring replicas across which the experts of each layer are sharded; 1: not sharded.
    distributed_optimizer
        Whether replicas shard the optimizer (ZeRO-1). Each gets the sum of its part of the
        gradients (reduce-scatter), steps it, and gathers the other parts' parameters.
    attention
        Implementation of attention, with the same result. `megatron` is Megatron-Core's own, which
        stores the scores of all pairs of tokens, as the papers' Megatron-LM did. `torch` is the
        same layers with torch's fused kernels. `transformer-engine` is NVIDIA's layers, norms and
        linear layers included, where `transformer_engine` is installed.
    log_communication
        Whether to log every collective and message of recorded iterations.
    partition
        Groups across which weights, gradients and optimizer states are sharded. None: every replica
        has all of them, except with `distributed_optimizer`.
    compression
        Codecs of messages by parallel direction; None: no compression.
    learning_rate
        Learning rate of Adam, the same in every step.
    """

    family: Family
    shape: AnyShape
    precision: Precision
    micro_batch_size: int
    microbatches: int
    warmup: int
    iterations: int
    save_every: int
    validate_every: int
    validation_batches: int
    corpus: Path
    split: str
    seed: int = 1234
    pipeline_parallel: int = 1
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    expert_parallel: int = 1
    distributed_optimizer: bool = False
    attention: Attention = "megatron"
    most_iterations: int | None = None
    half_interval: float = 0.02
    log_communication: bool = False
    partition: Partition | None = None
    compression: Compression | None = None
    learning_rate: float = 1e-4


@dataclass(frozen=True)
class EmulatedGpu:
    """Limits of a rank that emulates a GPU; without arguments there are none.

    Attributes
    ----------
    cores
        CPU share that throttles the rank's compute; None: full speed.
    memory_bytes
        Memory that a run may take in addition to the process's; None: no limit.
    passes_s
        Times of a micro batch's passes by pipeline stage, for which link rates are right: forward,
        backward, and the optimizer's step unless it takes as long as it takes. Empty: all do.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    passes_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Span:
    """Validation or checkpoint from `start_s` to `end_s` on the machine's monotonic clock."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankRecord:
    """Measurements of one rank, one entry per recorded iteration; times are in seconds.

    Attributes
    ----------
    rank
        Global rank.
    start_s
        Start of each iteration on the monotonic clock, so that iterations, spans, messages and
        counter samples of one machine share an axis.
    iteration_time_s, phase_time_s
        Duration of each iteration, and of each of its `PHASES`, which add up to it.
    loss
        Mean loss of this replica's micro batches; NaN on ranks that do not hold the last stage.
    validation_loss
        Mean over all replicas, the same on every rank; one entry per validation.
    spans
        Validations and checkpoints.
    parameters, gradient_bytes
        Parameters, and bytes of gradients, of this rank's stage.
    peak_memory_bytes
        Peak memory of the run, and of those interleaved with it, in addition to the rank's memory
        before.
    timer_time_s
        Time of each of `P2P_TIMERS`, as Megatron-Core measured it.
    messages
        This rank's end of every message it sent or received, in the order of completion; empty
        without a pipeline.
    transfers
        Every collective and message of the recorded iterations, in order, where they were logged.
    pipeline_rank
        This rank's stage, from 0.
    adam_state_bytes, weight_bytes
        This rank's moments of Adam, and its weights without the optimizer's copies of them.
    warmup
        Iterations that were dropped before the first one.
    before_s
        Time of set-up and warm-up.
    contention_fraction
        Largest fraction of each iteration that a rank lost to other processes, with emulated GPUs.
    discarded
        Iterations that were not recorded because of contention.
    reached_target_precision
        Whether the means reached the target precision; otherwise the run ended at its largest
        number of iterations.
    slowdown_factor
        Time of passes on these ranks over `EmulatedGpu.passes_s`; messages are as much slower.
    """

    rank: int
    start_s: tuple[float, ...]
    iteration_time_s: tuple[float, ...]
    phase_time_s: dict[str, tuple[float, ...]]
    loss: tuple[float, ...]
    validation_loss: tuple[float, ...]
    spans: tuple[Span, ...]
    parameters: int
    gradient_bytes: int
    peak_memory_bytes: int
    timer_time_s: dict[str, tuple[float, ...]] = field(default_factory=dict)
    messages: tuple[MessageEnd, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    pipeline_rank: int = 0
    adam_state_bytes: int = 0
    weight_bytes: int = 0
    warmup: int = 0
    before_s: dict[str, float] = field(default_factory=dict)
    contention_fraction: tuple[float, ...] = ()
    discarded: int = 0
    reached_target_precision: bool = False
    slowdown_factor: float = 1.0


def retimed(record: RankRecord, clock: Callable[[float], float]) -> RankRecord:
    """Convert the times of a record to another clock."""
    return replace(
        record,
        start_s=tuple(map(clock, record.start_s)),
        spans=tuple(
            replace(span, start_s=clock(span.start_s), end_s=clock(span.end_s))
            for span in record.spans
        ),
        messages=tuple(
            replace(end, posted_s=clock(end.posted_s), completed_s=clock(end.completed_s))
            for end in record.messages
        ),
        transfers=tuple(
            replace(one, start_s=clock(one.start_s), end_s=clock(one.end_s))
            for one in record.transfers
        ),
    )


class Spectrum(NamedTuple):
    """Information content of one matrix in one step (`repro.train.spectra`).

    `kind` is gradient or activation, and `layer` a name. `rank_share` is the effective rank over
    the largest possible rank, `entropy_bits` the Shannon entropy of a number as an integer of 8
    bits.
    """

    kind: str
    layer: str
    step: int
    rank_share: float
    entropy_bits: float
