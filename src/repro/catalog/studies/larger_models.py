"""GPTs that the papers did not train (`params/larger_models.yaml`), and shapes of all GPTs."""

from pydantic import PositiveInt

from repro.catalog.models.papers import Shape, read_models
from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.studies.communication import read_communication_study


class LargerModel(Entry):
    """A GPT model that the papers did not train."""

    label: str
    shape: Shape
    source: str


class LargerModels(Entry):
    """Larger models, numbers of GPUs and choices of a plan (`params/larger_models.yaml`).

    Attributes
    ----------
    pipeline_parallel, micro_batch_size
        Choices of a plan, in order of preference. A model gets the first number of stages that
        fits in memory, with the first micro batch that does.
    micro_batches
        Micro batches per replica and iteration, on any number of GPUs.
    """

    cluster: str
    gpus: tuple[PositiveInt, ...]
    pipeline_parallel: tuple[PositiveInt, ...]
    micro_batch_size: tuple[PositiveInt, ...]
    micro_batches: PositiveInt
    models: dict[str, LargerModel]


def read_larger_models() -> LargerModels:
    """Read the larger models and how they are trained."""
    models: LargerModels = read_params("larger_models.yaml", LargerModels)
    return models


def gpt_shape(name: str) -> Shape:
    """Return the full-size shape of a GPT in params/: models, larger_models or communication.

    Raises
    ------
    ReproError
        The model is unknown; the message lists the choices.
    """
    known = {name: entry.full for name, entry in read_models().items() if entry.family == "gpt"}
    known |= {name: entry.shape for name, entry in read_larger_models().models.items()}
    known |= {name: entry.shape for name, entry in read_communication_study().models.items()}
    return choose("GPT model", name, known)
