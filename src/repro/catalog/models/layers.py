"""Operations of one transformer layer: the list that counts, memory, prices and volumes read.

A new kind of layer is one function here. Sizes are integers, or arrays with a row per model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

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
    timed
        Whether it takes time; not so for a router, whose outputs are few.
    """

    name: str
    inputs: Any
    outputs: Any
    splits: Literal["outputs", "inputs"] | None
    experts: Any = None
    chosen: Any = 1
    bias: bool = False
    reads: Tokens = "own"
    timed: bool = True

    @property
    def parameters(self) -> Any:
        """Trainable parameters of one expert, or of the only weights."""
        return self.inputs * self.outputs + self.outputs * self.bias

    def divided(self, ranks: Any) -> tuple[Any, Any]:
        """Return outputs and inputs of one of the ranks that divide the weights."""
        if self.splits is None:
            return self.outputs, self.inputs
        if self.splits == "outputs":
            return self.outputs / ranks, self.inputs
        return self.outputs, self.inputs / ranks


@dataclass(frozen=True)
class Attention:
    """Attention of the layer's tokens to the tokens `reads`: scores, and sums of values.

    `heads` heads of queries share `kv_heads` heads of keys and values. Queries and keys are
    `head_dim` wide, values `value_dim`. With a `window` above 0, the share `windowed` of the layers
    attends to the last `window` tokens only. Latent attention caches `latent_keys` elements per
    token for all heads, of which `latent_values` make the values; 0: keys and values of each head.
    """

    heads: Any
    kv_heads: Any
    head_dim: Any
    value_dim: Any
    window: Any = 0
    windowed: Any = 0.5
    latent_keys: Any = 0
    latent_values: Any = 0
    reads: Tokens = "own"

    @property
    def mean_dim(self) -> Any:
        """Width of a head in the mean of scores and sums of values, which take as many FLOPs."""
        return (self.head_dim + self.value_dim) / 2

    @property
    def query_width(self) -> Any:
        """Elements of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> Any:
        """Elements of keys and values of a token."""
        return self.kv_heads * (self.head_dim + self.value_dim)

    def cached_width(self, ranks: Any) -> Any:
        """Elements per token in the cache of one of the ranks that divide the heads.

        Ranks that outnumber the heads of keys hold copies; all ranks hold a latent vector.
        """
        of_heads = np.maximum(self.kv_heads / ranks, 1.0) * (self.head_dim + self.value_dim)
        return np.where(self.latent_keys > 0, self.latent_keys, of_heads)

    @property
    def output_width(self) -> Any:
        """Elements of a token's sums of values."""
        return self.heads * self.value_dim


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
        Whether tokens are gathered for experts and scattered back. All ranks that divide an expert
        have its tokens.
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
        Attention(heads, heads, h / heads, h / heads),
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
            Attention(heads, heads, h / heads, h / heads, reads="encoder"),
            Linear("cross-attention output", h, h, "inputs", bias=True),
        ]
    return operations


def decoder_layer(model: Any) -> list[Operation]:
    """List the operations of a decoder layer: attention, and an MLP or experts.

    Element-wise kernels are fused: two norms with two residual sums, rotary embeddings, the
    activation, and gathering and scattering of tokens by experts.

    Parameters
    ----------
    model
        Widths and experts as `DecoderShape` names them; 0 for an MLP or experts that are missing.
    """
    h, gated = model.hidden, model.gated_mlp
    expert, experts, chosen = model.expert_ffn, model.experts, model.experts_per_token
    inner = model.ffn + model.shared_expert_ffn
    return [
        *_attention_block(model),
        *_mlp_block(model, model.ffn, inner + chosen * expert),
        *_mlp(h, model.shared_expert_ffn, gated, "shared expert"),
        Linear("router", h, experts, None, timed=False),
        # Each token's inputs of its experts; outputs are weighted inside the experts' activation.
        Elements("routing", chosen * h, 12, 12, "sequence", outputs=chosen * h, routed=True),
        Message("expert", h, chosen),
        Linear("experts up", h, (1 + gated) * expert, "outputs", experts, chosen),
        Linear("experts down", expert, h, "inputs", experts, chosen),
    ]


def layer_kinds(model: Any) -> list[tuple[Any, list[Operation]]]:
    """List the kinds of a decoder's layers, each with how many there are.

    The first `dense_layers` of a mixture of experts have an MLP of `dense_ffn` instead.
    """
    kinds: list[tuple[Any, list[Operation]]] = [
        (model.layers - model.dense_layers, decoder_layer(model))
    ]
    if np.any(model.dense_layers):
        ffn = model.dense_ffn
        dense = [*_attention_block(model), *_mlp_block(model, ffn, ffn)]
        kinds.append((model.dense_layers, dense))
    return kinds


def _attention_block(model: Any) -> list[Operation]:
    """List a norm and attention, of heads whose keys and values may be compressed.

    With `kv_rank`, a token's keys and values are computed from one narrow vector and one rotary
    key, and with `query_rank` its queries from another (DeepSeek-V2, 2024, section 2.1).
    """
    h = model.hidden
    attention = Attention(
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.value_dim,
        model.window,
        model.windowed,
        model.kv_rank + model.rope_dim * np.minimum(model.kv_rank, 1),
        model.kv_rank,
    )
    queries, values = attention.query_width, attention.kv_width
    latent, narrow = np.minimum(model.kv_rank, 1), np.minimum(model.query_rank, 1)
    projections: list[Operation] = [
        Linear("queries, keys, values", h, (1 - latent) * (queries + values), "outputs")
    ]
    if np.any(latent):
        keys, ranks = model.kv_heads * model.rope_dim, model.query_rank + model.kv_rank
        wide = model.query_rank + (1 - narrow) * h
        projections += [
            Linear("query compression", h, model.query_rank, None),
            Linear("queries", wide, latent * queries, "outputs"),
            Linear("key, value compression", h, model.kv_rank + model.rope_dim, None),
            Elements("latent norms", ranks, 4, 8, "sequence", ranks, ranks),
            Linear("keys, values", model.kv_rank, latent * (values - keys), "outputs"),
        ]
    return [
        _norm(model),
        Message("tensor", h),
        *projections,
        Elements("rotary embeddings", queries + model.kv_heads * model.head_dim, 4, 4, "width"),
        Message("context", values),
        attention,
        Linear("attention output", attention.output_width, h, "inputs"),
    ]


def _mlp_block(model: Any, ffn: Any, inner: Any) -> list[Operation]:
    """List a norm, an MLP, and an activation of the `inner` width of all experts of a token."""
    gated = model.gated_mlp
    activation = Elements(
        "activation", inner, 4 + 2 * gated, 6 + 4 * gated, "width", (1 + gated) * inner, inner
    )
    products = _mlp(model.hidden, ffn, gated, "MLP")
    return [_norm(model), Message("tensor", model.hidden), *products, activation]


def _norm(model: Any) -> Elements:
    return Elements(
        "norm and residual sum", model.hidden, 10, 14, "sequence", model.hidden, model.hidden
    )


def _mlp(hidden: Any, ffn: Any, gated: Any, name: str) -> list[Operation]:
    return [
        Linear(f"{name} up", hidden, (1 + gated) * ffn, "outputs"),
        Linear(f"{name} down", ffn, hidden, "inputs"),
    ]


def products(operations: Iterable[Operation]) -> list[Linear]:
    """Return the linear layers that take time."""
    return [one for one in operations if isinstance(one, Linear) and one.timed]


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
            flops = flops + 4 * tokens["own"] * tokens[one.reads] * one.heads * one.mean_dim
    return flops
