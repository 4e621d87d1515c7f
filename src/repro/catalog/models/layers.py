"""Operations of one transformer layer: the list that counts, memory, prices and volumes read.

A new kind of layer is one function here. Sizes are integers, or arrays with a row per model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

# Tokens that an operation works on: the layer's own, or the encoder's (cross-attention).
Tokens = Literal["own", "encoder"]
Group = Literal["tensor", "context", "expert"]


@dataclass(frozen=True)
class Linear:
    """Multiplication of tokens with weights of (inputs, outputs).

    The operation before it keeps its inputs.

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
class Attention:
    """Attention of the layer's tokens to the tokens `reads`: scores, and sums of values.

    `heads` heads of queries, each `head_dim` wide, share `kv_heads` heads of keys and values. With
    a `window` above 0, every second layer attends to the last `window` tokens only.
    """

    heads: Any
    kv_heads: Any
    head_dim: Any
    window: Any = 0
    reads: Tokens = "own"

    @property
    def width(self) -> Any:
        """Elements of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> Any:
        """Elements of keys and values of a token."""
        return 2 * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Elements:
    """Element-wise kernels over `width` elements per token: norms, activations, sums.

    Attributes
    ----------
    forward_bytes, backward_bytes
        Bytes that kernels read and write per element in half precision.
    splits
        What tensor parallelism divides: the `width`, or, where sequence parallelism is on, the
        `sequence`.
    inputs, outputs
        Elements per token that are kept: inputs in the precision of activations, outputs in that of
        the products that multiply them.
    masked
        Elements per token with a dropout mask of one byte.
    routed
        Whether tokens are gathered for experts and scattered back.
    """

    name: str
    width: Any
    forward_bytes: Any
    backward_bytes: Any
    splits: Literal["width", "sequence"]
    inputs: Any = 0
    outputs: Any = 0
    masked: Any = 0
    routed: bool = False


@dataclass(frozen=True)
class Message:
    """Communication of `width` elements per token among the ranks of a group.

    Tensor-parallel ranks all-reduce them in the forward pass, and their gradients in the backward
    pass; context-parallel ranks pass keys and values on; expert-parallel ranks exchange tokens with
    `chosen` experts and back.
    """

    group: Group
    width: Any
    chosen: Any = 1


Operation = Linear | Attention | Elements | Message


def classic_layer(model: Any, cross: bool = False) -> list[Operation]:
    """List the operations of a layer of GPT-2, BERT or T5 in unfused software with dropout.

    A norm reads and writes 4 bytes per element (8 in the backward pass), bias, dropout and residual
    sum 7 (7); bias and GELU 4 (6, and 3 for the bias's gradient), transposes as much.

    Parameters
    ----------
    model
        `hidden_size`, `ffn_hidden_size` and `attention_heads`, as `Shape` has them.
    cross
        Whether the layer also attends to an encoder.
    """
    h, f, heads = model.hidden_size, model.ffn_hidden_size, model.attention_heads

    norm = Elements("norm, dropout and residual sum", h, 11, 15, "sequence", h, h, masked=h)
    transposes = Elements("transposes", h, 4, 9, "width")
    gathered = Message("tensor", h)
    operations: list[Operation] = [
        norm,
        gathered,
        Linear("queries, keys, values", h, 3 * h, "outputs", bias=True),
        transposes,
        Attention(heads, heads, h / heads),
        Linear("attention output", h, h, "inputs", bias=True),
        norm,
        gathered,
        Linear("MLP up", h, f, "outputs", bias=True),
        Elements("bias and GELU", f, 4, 9, "width", f, f),
        Linear("MLP down", f, h, "inputs", bias=True),
    ]
    if cross:
        operations += [
            norm,
            gathered,
            Linear("cross queries", h, h, "outputs", bias=True),
            Linear("cross keys, values", h, 2 * h, "outputs", bias=True, reads="encoder"),
            transposes,
            Attention(heads, heads, h / heads, reads="encoder"),
            Linear("cross-attention output", h, h, "inputs", bias=True),
        ]
    return operations


def decoder_layer(model: Any) -> list[Operation]:
    """List the operations of a decoder layer with grouped queries, an MLP, and experts.

    Element-wise kernels are fused: two norms with two residual sums, rotary embeddings, the
    activation, and gathering and scattering of tokens by experts.

    Parameters
    ----------
    model
        Widths and experts as `DecoderShape` names them; 0 for an MLP or experts that are missing.
    """
    h, gated = model.hidden, model.gated_mlp
    shared, expert = model.shared_expert_ffn, model.expert_ffn
    experts, chosen = model.experts, model.experts_per_token
    attention = Attention(model.heads, model.kv_heads, model.head_dim, model.window)
    width, kv_width = attention.width, attention.kv_width
    norm, gathered = (
        Elements("norm and residual sum", h, 10, 14, "sequence", h, h),
        Message("tensor", h),
    )
    inner = model.ffn + shared + chosen * expert
    return [
        norm,
        gathered,
        Linear("queries, keys, values", h, width + kv_width, "outputs"),
        Elements("rotary embeddings", width + kv_width / 2, 4, 4, "width"),
        Message("context", kv_width),
        attention,
        Linear("attention output", width, h, "inputs"),
        norm,
        gathered,
        Linear("MLP up", h, (1 + gated) * model.ffn, "outputs"),
        Linear("MLP down", model.ffn, h, "inputs"),
        Linear("shared expert up", h, (1 + gated) * shared, "outputs"),
        Linear("shared expert down", shared, h, "inputs"),
        Elements(
            "activation", inner, 4 + 2 * gated, 6 + 4 * gated, "width", (1 + gated) * inner, inner
        ),
        Linear("router", h, experts, None),
        Elements("routing", chosen * h, 12, 12, "sequence", 2 * chosen * h, routed=True),
        Message("expert", h, chosen),
        Linear("experts up", h, (1 + gated) * expert, "outputs", experts, chosen),
        Linear("experts down", expert, h, "inputs", experts, chosen),
    ]


def products(operations: Iterable[Operation]) -> list[Linear]:
    """Return the linear layers that take time: all but a router, whose outputs are few."""
    return [one for one in operations if isinstance(one, Linear) and one.splits is not None]


def attentions(operations: Iterable[Operation]) -> list[Attention]:
    """Return the attentions of a layer."""
    return [one for one in operations if isinstance(one, Attention)]


def elements(operations: Iterable[Operation]) -> list[Elements]:
    """Return the element-wise kernels of a layer."""
    return [one for one in operations if isinstance(one, Elements)]


def messages(operations: Iterable[Operation], group: Group) -> list[Message]:
    """Return what a layer communicates in groups of a kind."""
    return [one for one in operations if isinstance(one, Message) and one.group == group]


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
        elif isinstance(one, Attention):
            flops = flops + 4 * tokens["own"] * tokens[one.reads] * one.width
    return flops
