"""Study of the communication of GPT training (`params/communication.yaml`)."""

from pydantic import PositiveInt

from repro.catalog.models.papers import Shape
from repro.catalog.reading import Entry, read_params
from repro.catalog.studies.experiments import ExperimentName


class GptModel(Entry):
    """GPT that is only predicted."""

    label: str
    shape: Shape
    source: str


class PredictionGrid(Entry):
    """Grid of predictions: one plan for several models, numbers of GPUs and sequence lengths.

    The plan has no data-parallel size: the remaining GPUs are replicas.
    """

    cluster: str
    models: tuple[str, ...]
    plan: str
    gpus: tuple[PositiveInt, ...]
    sequence_lengths: tuple[PositiveInt, ...]


class CommunicationStudy(Entry):
    """Logged training, one experiment's model in several layouts, and predictions.

    `layouts` are plans of `repro.catalog.parallel.layouts.read_plan` that use all `gpus`. Exactly
    `iterations` are recorded.
    """

    title: str
    source: str
    experiment: ExperimentName
    model: str
    gpus: PositiveInt
    micro_batch_size: PositiveInt
    warmup: PositiveInt
    iterations: PositiveInt
    layouts: tuple[str, ...]
    study: PredictionGrid
    models: dict[str, GptModel]


def read_communication_study() -> CommunicationStudy:
    """Read the parameters of the study."""
    value: CommunicationStudy = read_params("communication.yaml", CommunicationStudy)
    return value
