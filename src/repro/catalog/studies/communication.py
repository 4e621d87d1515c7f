"""The study of what GPT training communicates (`params/communication.yaml`)."""

from pydantic import PositiveInt

from repro.catalog.models.papers import Shape
from repro.catalog.reading import Entry, read_yaml
from repro.catalog.studies.experiments import ExperimentName
from repro.paths import PARAMS


class GptModel(Entry):
    """A GPT that nothing trains here."""

    label: str
    shape: Shape
    source: str


class Predicted(Entry):
    """What is predicted: a plan for several models, numbers of GPUs and sequence lengths.

    The plan has no data-parallel size: GPUs that it leaves are replicas.
    """

    cluster: str
    models: tuple[str, ...]
    plan: str
    gpus: tuple[PositiveInt, ...]
    sequence_lengths: tuple[PositiveInt, ...]


class CommunicationStudy(Entry):
    """What is logged: one experiment's model on so many GPUs, in several layouts.

    `layouts` are plans of `repro.catalog.parallel.layouts.read_plan` that take all GPUs. Exactly
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
    study: Predicted
    models: dict[str, GptModel]


def read_communication_study() -> CommunicationStudy:
    """All of it."""
    value: CommunicationStudy = read_yaml(PARAMS / "communication.yaml", CommunicationStudy)
    return value
