"""Which stage of a pipeline holds what: layers, embeddings, and the shape that goes on."""

from typing import Any, Protocol

from repro.catalog.models.papers import Family
from repro.errors import ReproError


class Sequences(Protocol):
    """Lengths in tokens: of a `Shape`, or of a plan of the performance model."""

    @property
    def sequence_length(self) -> Any: ...
    @property
    def decoder_sequence_length(self) -> Any: ...


def encoder_stages(stages: int) -> int:
    """How many stages of a T5 pipeline hold its encoder: the first half; the rest the decoder.

    Raises
    ------
    ReproError
        The number of stages is odd.
    """
    if stages % 2:
        raise ReproError(
            f"pipeline_parallel is {stages}; t5 needs an even number of stages, half of them for "
            f"its encoder and half for its decoder"
        )
    return stages // 2


def layers_per_stage(family: Family, layers: int, stages: int) -> int:
    """Layers on every stage; `layers` counts those of the model, or of each of T5's two stacks.

    Raises
    ------
    ReproError
        The stages cannot share the layers evenly.
    """
    sharing = encoder_stages(stages) if family == "t5" and stages > 1 else stages
    if layers % sharing:
        stack = "the layers of each stack" if family == "t5" else "layers"
        raise ReproError(
            f"{stack} of {family} are {layers}, pipeline_parallel is {stages}: {sharing} stages "
            f"cannot share them evenly"
        )
    return layers // sharing


def word_embedding_stages(family: Family, stages: int) -> list[int]:
    """Stages with a copy of the word embeddings: inputs and logits share them."""
    ends = {0, stages - 1}
    if family == "t5" and stages > 1:
        ends.add(encoder_stages(stages))
    return sorted(ends)


def position_embedding_stages(family: Family, stages: int) -> list[int]:
    """Stages with a copy of the position embeddings: those that turn tokens into vectors."""
    return [0, encoder_stages(stages)] if family == "t5" and stages > 1 else [0]


def tokens_handed_on(family: Family, model: Sequences, stages: int, stage: int) -> Any:
    """Positions per sequence in what a stage hands to the next.

    T5's decoder stages hand on the encoder's output beside their own, because each of them attends
    to it.
    """
    if family != "t5" or stage < encoder_stages(stages):
        return model.sequence_length
    return model.sequence_length + model.decoder_sequence_length
