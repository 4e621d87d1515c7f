"""The study of compressed messages (`params/compression.yaml`)."""

from pydantic import PositiveFloat, PositiveInt

from repro.catalog.parallel.codecs import Compression
from repro.catalog.reading import Entry, read_yaml
from repro.catalog.studies.experiments import ExperimentName
from repro.paths import PARAMS


class Trained(Entry):
    """What both parts train: so many `micro_batches` of a replica in each iteration, in the layout
    of `plan` (`repro.catalog.parallel.layouts.read_plan`), with Adam at `learning_rate`."""

    plan: str
    gpus: PositiveInt
    micro_batch_size: PositiveInt
    micro_batches: PositiveInt
    learning_rate: PositiveFloat


class Timed(Entry):
    """Iterations timed on the testbed over each protocol of an experiment, in some schemes;
    `models` and numbers of `iterations` by profile."""

    experiment: ExperimentName
    models: dict[str, str]
    schemes: tuple[str, ...]
    warmup: PositiveInt
    iterations: dict[str, PositiveInt]


class Losses(Entry):
    """Training for its loss, on this machine's ranks at full speed: `steps` and `seeds` by profile;
    `validation_batches` are looked at every `validate_every` steps."""

    model: str
    schemes: tuple[str, ...]
    seeds: dict[str, PositiveInt]
    steps: dict[str, PositiveInt]
    validate_every: PositiveInt
    validation_batches: PositiveInt


class Spectra(Entry):
    """What one rank looks at: matrices of that model, every so many of `steps`, by profile."""

    steps: dict[str, PositiveInt]
    every: PositiveInt


class CompressionStudy(Entry):
    """All of it; `schemes` by name."""

    title: str
    source: str
    schemes: dict[str, Compression]
    trained: Trained
    timed: Timed
    losses: Losses
    spectra: Spectra


def read_compression_study() -> CompressionStudy:
    """The study's parameters."""
    value: CompressionStudy = read_yaml(PARAMS / "compression.yaml", CompressionStudy)
    return value
