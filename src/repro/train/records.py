"""What a training run is told, and what each of its ranks returns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repro.catalog.models import Family, Shape

Precision = Literal["fp32", "bf16", "fp16"]

# Phases of one iteration, in the order they happen. "straggler wait" is the time a rank waits at
# the barrier in front of the gradient sync; "other" is what no timer claims.
PHASES = (
    "forward compute",
    "backward compute",
    "straggler wait",
    "gradient sync",
    "optimizer",
    "other",
)


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
        Sequences in one forward pass of one rank.
    microbatches
        Forward passes of one rank in one iteration; gradients accumulate over them.
    warmup, iterations
        Iterations dropped, and iterations recorded.
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
    """

    family: Family
    shape: Shape
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


@dataclass(frozen=True)
class Span:
    """Something that took from `start_s` to `end_s` on the monotonic clock of the machine."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class RankRecord:
    """What one rank measured; one entry per recorded iteration, times in seconds.

    `start_s` is on the monotonic clock, so that iterations, spans and counter samples of one
    machine share an axis. `loss` is this rank's own mean loss of the iteration.
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
