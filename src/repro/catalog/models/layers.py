"""Operations of one transformer layer: the list that counts, memory and prices read.

A new kind of layer is one function here. Sizes are integers, or arrays with a row per model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

# Tokens that an operation works on: the layer's own, or the encoder's (cross-attention).
Tokens = Literal["own", "encoder"]


@dataclass(frozen=True)
class Linear:
    """Multiplication of tokens with weights of (inputs, outputs).

    Attributes
    ----------
    inputs, outputs
        Widths of the weights in elements.
    splits
        Width that tensor parallelism divides: `outputs` (column parallel), `inputs` (row parallel),
        or none, where every rank has all weights.
    experts
        Number of such weights, one per expert, which expert parallelism distributes; None: one.
    chosen
        Experts that work on each token.
    bias
        Whether a bias is added to the outputs.
    reads
        Tokens that are multiplied.
    """

    name: str
    inputs: Any
    outputs: Any
    splits: Literal["outputs", "inputs"] | None
    experts: Any = None
    chosen: Any = 1
    bias: bool = False
    reads: Tokens = "own"

    @property
    def parameters(self) -> Any:
        """Trainable parameters of one expert, or of the only weights."""
        return self.inputs * self.outputs + self.outputs * self.bias


@dataclass(frozen=True)
class Scores:
    """Attention of the layer's tokens to the tokens `reads`: scores, and sums of values."""

    width: Any
    reads: Tokens = "own"


Operation = Linear | Scores


class ClassicWidths(Protocol):
    """Widths of a layer with LayerNorm, biases and as many keys as queries."""

    @property
    def hidden_size(self) -> Any:
        """Width of hidden states."""

    @property
    def ffn_hidden_size(self) -> Any:
        """Width inside the MLP."""


class DecoderWidths(Protocol):
    """Widths of a decoder layer of today; 0 for what it has not."""

    @property
    def hidden(self) -> Any:
        """Width of hidden states."""

    @property
    def heads(self) -> Any:
        """Heads of queries."""

    @property
    def kv_heads(self) -> Any:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> Any:
        """Width of a head."""

    @property
    def ffn(self) -> Any:
        """Width inside the MLP."""

    @property
    def gated_mlp(self) -> Any:
        """Whether the MLP has a gate."""

    @property
    def experts(self) -> Any:
        """Number of experts."""

    @property
    def experts_per_token(self) -> Any:
        """Experts that work on each token."""

    @property
    def expert_ffn(self) -> Any:
        """Width inside an expert."""

    @property
    def shared_expert_ffn(self) -> Any:
        """Width inside the experts that work on all tokens."""


def classic_layer(model: ClassicWidths, cross: bool = False) -> list[Operation]:
    """List the operations of a layer of GPT-2, BERT or T5; `cross` adds attention to an encoder."""
    h, f = model.hidden_size, model.ffn_hidden_size
    operations: list[Operation] = [
        Linear("queries, keys, values", h, 3 * h, "outputs", bias=True),
        Scores(h),
        Linear("attention output", h, h, "inputs", bias=True),
        Linear("MLP up", h, f, "outputs", bias=True),
        Linear("MLP down", f, h, "inputs", bias=True),
    ]
    if cross:
        operations += [
            Linear("cross queries", h, h, "outputs", bias=True),
            Linear("cross keys, values", h, 2 * h, "outputs", bias=True, reads="encoder"),
            Scores(h, "encoder"),
            Linear("cross-attention output", h, h, "inputs", bias=True),
        ]
    return operations


def decoder_layer(model: DecoderWidths) -> list[Operation]:
    """List the operations of a decoder layer with grouped queries, an MLP, and experts."""
    h, width = model.hidden, model.heads * model.head_dim
    up = 1 + model.gated_mlp
    shared, expert = model.shared_expert_ffn, model.expert_ffn
    experts, chosen = model.experts, model.experts_per_token
    return [
        Linear("queries, keys, values", h, width + 2 * model.kv_heads * model.head_dim, "outputs"),
        Scores(width),
        Linear("attention output", width, h, "inputs"),
        Linear("MLP up", h, up * model.ffn, "outputs"),
        Linear("MLP down", model.ffn, h, "inputs"),
        Linear("shared expert up", h, up * shared, "outputs"),
        Linear("shared expert down", shared, h, "inputs"),
        Linear("router", h, experts, None),
        Linear("experts up", h, up * expert, "outputs", experts, chosen),
        Linear("experts down", expert, h, "inputs", experts, chosen),
    ]


def products(operations: Iterable[Operation]) -> list[Linear]:
    """Return the linear layers that take time: all but a router, whose outputs are few."""
    return [one for one in operations if isinstance(one, Linear) and one.splits is not None]


def count_parameters(operations: Iterable[Operation], experts: Any) -> Any:
    """Count the trainable parameters of a layer with so many experts, norms left out."""
    return sum(
        one.parameters * (1 if one.experts is None else experts)
        for one in operations
        if isinstance(one, Linear)
    )


def forward_flops(operations: Iterable[Operation], tokens: Mapping[str, Any]) -> Any:
    """Count the floating-point operations of a layer's forward pass, causality ignored.

    Parameters
    ----------
    tokens
        Tokens of one sequence by `Tokens`.
    """
    flops: Any = 0
    for one in operations:
        if isinstance(one, Linear):
            chosen = 1 if one.experts is None else one.chosen
            flops = flops + 2 * tokens[one.reads] * chosen * one.inputs * one.outputs
        else:
            flops = flops + 4 * tokens["own"] * tokens[one.reads] * one.width
    return flops
