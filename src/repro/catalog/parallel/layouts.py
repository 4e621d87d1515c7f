"""Parallel layout of a GPT training step, and plans: its one-line form."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from repro.catalog.models.papers import Shape
from repro.catalog.reading import choose
from repro.errors import ReproError

# Keys of a plan, as in the plans of `repro what-if`.
_PLAN_KEYS = {
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
    """Sizes of the parallel groups that train a model, and its batch.

    Attributes
    ----------
    tensor_parallel, context_parallel, data_parallel, pipeline_parallel
        Ranks of each group, in Megatron-Core's order: tensor-parallel ranks are neighbours.
    virtual_stages
        Model chunks of each stage (interleaved 1F1B); 1 for plain 1F1B.
    sequence_parallel
        Whether tensor-parallel ranks also split activations between the matrices, by positions.
    zero
        ZeRO stage: what data-parallel ranks shard (Rajbhandari et al., SC 2020). 0 is nothing, 1
        the optimizer states (Megatron-Core's distributed optimizer), 2 adds gradients, 3
        parameters.
    micro_batch_size, micro_batches
        Sequences of one forward pass of a replica, and forward passes per iteration.
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
        """Number of all ranks."""
        return self.replica_ranks * self.data_parallel

    @property
    def replica_ranks(self) -> int:
        """Number of ranks that hold one replica."""
        return self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    def check(self, shape: Shape) -> None:
        """Check that the layout can split a GPT of this shape.

        Raises
        ------
        ReproError
            A size is below 1, or does not divide what it splits.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("sequence_parallel", "zero") and value < 1:
                raise ReproError(f"{field.name} is {value}; choose 1 or more")
        if self.zero not in (0, 1, 2, 3):
            raise ReproError(f"zero is {self.zero}; choose 0, 1, 2 or 3")
        t, p, v = self.tensor_parallel, self.pipeline_parallel, self.virtual_stages
        positions = shape.sequence_length // self.context_parallel
        # For causal attention, Megatron-Core gives every rank two parts, one from each end.
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
                raise ReproError(f"{name} {whole} is not a multiple of {splitting} {parts}")
        if v > 1 and p == 1:
            raise ReproError(f"virtual_stages is {v}; fix: set pipeline_parallel above 1")
        if self.sequence_parallel and t == 1:
            raise ReproError("sequence_parallel is on; fix: set tensor_parallel above 1")


def read_plan(text: str) -> Layout:
    """Read a plan such as `tp=2,pp=4,dp=2,sp=1,zero=1,micro_batches=8`; omitted keys are 1, or off.

    Raises
    ------
    ReproError
        A key is unknown or given twice, or its value is not a whole number.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        name = choose("plan key", key.strip(), _PLAN_KEYS)
        if name in found:
            raise ReproError(f"plan {text!r}: {key} is given twice; fix: remove one")
        try:
            found[name] = int(value)
        except ValueError:
            raise ReproError(f"plan {text!r}: {part!r} is not {key}=NUMBER") from None
    found["sequence_parallel"] = bool(found.get("sequence_parallel", False))
    return Layout(**found)
