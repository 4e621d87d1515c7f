"""How a GPT's training step is split over ranks, checked."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from repro.catalog.models.papers import Shape
from repro.catalog.reading import choose
from repro.errors import ReproError

# A plan's words, as in the plans of `repro what-if`.
_WORDS = {
    "tp": "tensor_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "pp": "pipeline_parallel",
    "vpp": "virtual_stages",
    "sp": "sequence_parallel",
    "zero": "zero",
    "micro_batch": "micro_batch_size",
    "micro_batches": "micro_batches",
}


@dataclass(frozen=True)
class Layout:
    """Sizes of the groups that a model is trained in, and its batch.

    Attributes
    ----------
    tensor_parallel, context_parallel, data_parallel, pipeline_parallel
        Ranks of each group, in Megatron-Core's order: tensor-parallel ranks are neighbours.
    virtual_stages
        Model chunks of each stage (interleaved 1F1B); 1 for plain 1F1B.
    sequence_parallel
        Whether tensor-parallel ranks split what lies between the matrices by positions too.
    zero
        What data-parallel ranks share (Rajbhandari et al., SC 2020): 0 nothing, 1 the optimizer's
        state (Megatron-Core's distributed optimizer), 2 gradients too, 3 parameters too.
    micro_batch_size, micro_batches
        Sequences of one forward pass of a replica, and how many passes an iteration has.
    """

    tensor_parallel: int = 1
    context_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero: Literal[0, 1, 2, 3] = 0
    micro_batch_size: int = 1
    micro_batches: int = 1

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.replica_ranks * self.data_parallel

    @property
    def replica_ranks(self) -> int:
        """Ranks that hold one replica."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    def check(self, shape: Shape) -> None:
        """See that a GPT of such a shape can be split so.

        Raises
        ------
        ReproError
            A size is below 1, or does not divide what it splits.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("sequence_parallel", "zero") and value < 1:
                raise ReproError(f"{field.name} is {value}; wanted is 1 or more")
        if self.zero not in (0, 1, 2, 3):
            raise ReproError(f"zero is {self.zero}; wanted is 0, 1, 2 or 3")
        t, p, v = self.tensor_parallel, self.pipeline_parallel, self.virtual_stages
        positions = shape.sequence_length // self.context_parallel
        # Causal attention gives every rank two parts, one from each end (Megatron-Core).
        context = 2 * self.context_parallel if self.context_parallel > 1 else 1
        for name, whole, parts, splitting in (
            ("attention_heads", shape.attention_heads, t, "tensor_parallel"),
            ("ffn_hidden_size", shape.ffn_hidden_size, t, "tensor_parallel"),
            ("vocabulary_size", shape.vocabulary_size, t, "tensor_parallel"),
            ("layers", shape.layers, p * v, "pipeline_parallel x virtual_stages"),
            ("sequence_length", shape.sequence_length, context, "2 x context_parallel"),
            ("positions", positions, t if self.sequence_parallel else 1, "tensor_parallel"),
            ("micro_batches", self.micro_batches, p if v > 1 else 1, "pipeline_parallel"),
        ):
            if whole % parts:
                raise ReproError(f"{name} {whole} do not divide by {splitting} {parts}")
        if v > 1 and p == 1:
            raise ReproError(f"virtual_stages is {v}; it needs pipeline_parallel above 1")
        if self.sequence_parallel and t == 1:
            raise ReproError("sequence_parallel needs tensor_parallel above 1")


def read_plan(text: str) -> Layout:
    """A plan such as `tp=2,pp=4,dp=2,sp=1,zero=1,micro_batches=8`; what is left out is 1, or off.

    Raises
    ------
    ReproError
        A word is unknown, comes twice, or its value is no whole number.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, _, value = part.partition("=")
        name = choose("word of a plan", word.strip(), _WORDS)
        if name in found:
            raise ReproError(f"plan {text!r}: {word} is given twice")
        try:
            found[name] = int(value)
        except ValueError:
            raise ReproError(f"plan {text!r}: {part!r} is not {word}=NUMBER") from None
    found["sequence_parallel"] = bool(found.get("sequence_parallel", False))
    return Layout(**found)
