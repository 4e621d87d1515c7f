"""Operations of one transformer layer: the list that counts, memory and prices read.

A new kind of layer is one function here. Sizes are integers, or arrays with a row per model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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

    def divided(self, ranks: Any) -> tuple[Any, Any]:
        """Return outputs and inputs of one of the ranks that divide the weights."""
        if self.splits == "outputs":
            return self.outputs / ranks, self.inputs
        return self.outputs, self.inputs / ranks


@dataclass(frozen=True)
class Scores:
    """Attention of the layer's tokens to the tokens `reads`: scores, and sums of values."""

    width: Any
    reads: Tokens = "own"


Operation = Linear | Scores


def classic_layer(model: Any, cross: bool = False) -> list[Operation]:
    """List the operations of a layer of GPT-2, BERT or T5.

    Parameters
    ----------
    model
        `hidden_size` and `ffn_hidden_size`, as `Shape` has them.
    cross
        Whether the layer also attends to an encoder.
    """
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


def decoder_layer(model: Any) -> list[Operation]:
    """List the operations of a decoder layer with grouped queries, an MLP, and experts.

    Parameters
    ----------
    model
        Widths and experts as `DecoderShape` names them; 0 for an MLP or experts that are missing.
    """
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
