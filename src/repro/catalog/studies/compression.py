"""Study of compressed messages (`params/compression.yaml`)."""

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.parallel.codecs import Compression
from repro.catalog.reading import Entry, read_params
from repro.catalog.studies.experiments import ExperimentName


class TrainingSetup(Entry):
    """Training of both parts with Adam: `micro_batches` of a replica per iteration.

    `plan` is in the form of `repro.catalog.parallel.layouts.read_plan`.
    """

    plan: str
    gpus: PositiveInt
    micro_batch_size: PositiveInt
    micro_batches: PositiveInt
    learning_rate: PositiveFloat


class TimedRuns(Entry):
    """Iterations timed on the testbed over each protocol of an experiment, in some schemes.

    `models` and numbers of `iterations` are by profile.
    """

    experiment: ExperimentName
    models: dict[str, str]
    schemes: tuple[str, ...]
    warmup: PositiveInt
    iterations: dict[str, PositiveInt]


class LossRuns(Entry):
    """Training that records losses on this machine's ranks at full speed.

    `steps` and `seeds` are by profile; `validation_batches` run every `validate_every` steps.
    """

    model: str
    schemes: tuple[str, ...]
    seeds: dict[str, PositiveInt]
    steps: dict[str, PositiveInt]
    validate_every: PositiveInt
    validation_batches: PositiveInt


class Spectra(Entry):
    """Matrices of that model that one rank analyses every `every` steps; `steps` are by profile."""

    steps: dict[str, PositiveInt]
    every: PositiveInt


class CompressionStudy(Entry):
    """Parameters of the study; `schemes` are by name."""

    title: str
    source: str
    schemes: dict[str, Compression]
    trained: TrainingSetup
    timed: TimedRuns
    losses: LossRuns
    spectra: Spectra


def read_compression_study() -> CompressionStudy:
    """Read the parameters of the study."""
    value: CompressionStudy = read_params("compression.yaml", CompressionStudy)
    return value
