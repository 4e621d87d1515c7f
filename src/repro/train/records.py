"""What a training run is told, and what each of its ranks returns."""

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

# Is told how many steps are done, and what is going on beside them.
Report = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainingRun:
    """One configuration to train.

    Attributes
    ----------
    family, shape
        The model.
    precision
        Of parameters and activations; gradients are reduced in fp32 with fp32, else in that
        precision.
    micro_batch_size
        Sequences in one forward pass of one replica.
    microbatches
        Forward passes of one replica in one iteration; gradients accumulate over them.
    warmup
        Iterations dropped, at least: an emulated GPU warms up until its computing is steady.
    iterations
        Iterations recorded, at least.
    most_iterations
        Iterations recorded at most, until half of the 95 % interval of the mean iteration time is
        `half_interval` of it, and that of communication's share `half_interval`; None: exactly
        `iterations`.
    half_interval
        As above.
    save_every, validate_every
        Recorded iterations between two checkpoints, and between two validations; 0 for never.
    validation_batches
        Forward passes of one validation.
    corpus
        The folder of the enwiki artefacts (tokenizers and indexed datasets).
    split
        Weights of training and validation data, as `params/corpus.yaml` gives them.
    seed
        Of the initial weights and of the order of the data.
    pipeline_parallel
        Stages that a replica is split into; 1 for no pipeline.
    tensor_parallel
        Ranks that each stage's matrices are split over.
    sequence_parallel
        Whether they split what lies between the matrices by positions too; Megatron-Core needs
        layer norms of Transformer Engine or Apex for it.
    expert_parallel
        Neighbouring replicas that share the experts of each layer; 1 where each has all of them.
    distributed_optimizer
        Whether replicas share the optimizer: each gets the sum of its part of the gradients
        (reduce-scatter), steps it, and gathers the other parts' parameters.
    attention
        What computes attention, with the same result: `megatron` is Megatron-Core's own, which
        holds the scores of all pairs of tokens, as the papers' Megatron-LM did; `torch` the same
        layers with torch's fused kernels; `transformer-engine` NVIDIA's layers, norms and linear
        layers included, where `transformer_engine` is installed.
    log_communication
        Whether to note every collective and message of recorded iterations.
    partition
        The groups that weights, gradients and optimizer states are spread over; None: every replica
        has all of them, but for what `distributed_optimizer` says.
    compression
        What messages are encoded with, by parallel direction; None: as they are.
    learning_rate
        Of Adam, the same in every step.
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
    """What a rank is held to, so that it computes as a GPU does; by itself to nothing.

    Attributes
    ----------
    cores
        Its share of the machine, at whose pace it computes; None: as fast as it can.
    memory_bytes
        What a run may take beside what the process holds; None: all there is.
    passes_s
        What a forward and a backward pass and the optimizer's step of one micro batch take one rank
        with the whole model, at the rates that links have; empty: not known.
    """

    cores: float | None = None
    memory_bytes: int | None = None
    passes_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Span:
    """Something that took from `start_s` to `end_s` on the monotonic clock of the machine."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankRecord:
    """What one rank measured; one entry per recorded iteration, times in seconds.

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
        Of this rank's stage.
    peak_memory_bytes
        The most memory that the run, and what took turns with it, took beside what the rank held
        before.
    timer_time_s
        Each of `P2P_TIMERS`, as Megatron-Core measured it.
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
        What setting up and warming up took.
    contention_fraction
        Of each iteration of an emulated GPU, what the rank that lacked most waited for the machine.
    discarded
        Iterations that were not recorded because of that.
    reached_target_precision
        Whether the mean was known well enough at the last iteration; otherwise their number was
        reached.
    slowdown_factor
        How many times longer than `EmulatedGpu.passes_s` passes took on these ranks, and messages
        with them.
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
    """A record with its times on another clock."""
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
    """How much there is in one matrix in one step (`repro.train.spectra`).

    `kind` is gradient or activation, and `layer` a name. `rank_share` is the effective rank over
    the most that it could be, `entropy_bits` the Shannon entropy of a number as an integer of 8
    bits.
    """

    kind: str
    layer: str
    step: int
    rank_share: float
    entropy_bits: float
