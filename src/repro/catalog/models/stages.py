"""Contents of pipeline stages: layers, embeddings, and tokens sent to the next stage."""

from typing import Any, Protocol

from repro.catalog.models.papers import Family
from repro.errors import ReproError


class Sequences(Protocol):
    """Sequence lengths in tokens, of a `Shape` or of a plan of the performance model."""

    @property
    def sequence_length(self) -> Any:
        """Tokens of the encoder, or of the only stack."""

    @property
    def decoder_sequence_length(self) -> Any:
        """Tokens of the decoder of t5."""


def encoder_stages(stages: int) -> int:
    """Return the number of T5 pipeline stages that hold the encoder.

    These are the first half; the others hold the decoder.

    Raises
    ------
    ReproError
        The number of stages is odd.
    """
    if stages % 2:
        raise ReproError(
            f"pipeline_parallel is {stages}; t5 needs an even number of stages: half for its "
            f"encoder, half for its decoder"
        )
    return stages // 2


def layers_per_stage(family: Family, layers: int, stages: int) -> int:
    """Return the layers of every stage, given those of the model or of each of T5's two stacks.

    Raises
    ------
    ReproError
        The stages do not divide the layers.
    """
    stack_stages = encoder_stages(stages) if family == "t5" and stages > 1 else stages
    if layers % stack_stages:
        stack = "layers per stack" if family == "t5" else "layers"
        raise ReproError(
            f"{family} has {layers} {stack}, not a multiple of {stack_stages} stages; fix: choose "
            f"another pipeline_parallel than {stages}"
        )
    return layers // stack_stages


def word_embedding_stages(family: Family, stages: int) -> list[int]:
    """List the stages with a copy of the word embeddings, for inputs or for logits."""
    ends = {0, stages - 1}
    if family == "t5" and stages > 1:
        ends.add(encoder_stages(stages))
    return sorted(ends)


def position_embedding_stages(family: Family, stages: int) -> list[int]:
    """List the stages with a copy of the position embeddings: those that embed tokens."""
    return [0, encoder_stages(stages)] if family == "t5" and stages > 1 else [0]


def tokens_to_next_stage(family: Family, model: Sequences, stages: int, stage: int) -> Any:
    """Return the positions per sequence that a stage sends to the next.

    T5's decoder stages also send on the encoder's output, because each of them attends to it.
    """
    if family != "t5" or stage < encoder_stages(stages):
        return model.sequence_length
    return model.sequence_length + model.decoder_sequence_length
