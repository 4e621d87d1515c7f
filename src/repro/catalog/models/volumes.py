"""Parameters, FLOPs and bytes of one training step, computed from a model's shape.

The counts follow Megatron-Core's modules layer by layer, and are tested against them. All formulas
are sums and products, so they accept one model's integers as well as arrays of many models.
"""

from typing import Any, Protocol

from repro.catalog.models import layers
from repro.catalog.models.layers import classic_layer, count_parameters, decoder_layer
from repro.catalog.models.open_models import DecoderShape
from repro.catalog.models.papers import Family

# A backward pass has two matmuls for each one of the forward pass: the gradients of inputs and of
# weights (Narayanan et al., SC 2021, appendix).
BACKWARD_PER_FORWARD = 2
# The papers' Megatron-LM communicates in fp16, the testbed in fp32.
FULL_ELEMENT_BYTES, TESTBED_ELEMENT_BYTES = 2, 4


class Dimensions(Protocol):
    """Dimensions of a transformer, each an integer or an array: `Shape`, `Workload`."""

    @property
    def layers(self) -> Any:
        """Layers of each stack."""

    @property
    def hidden_size(self) -> Any:
        """Width of hidden states."""

    @property
    def ffn_hidden_size(self) -> Any:
        """Width inside the MLP."""

    @property
    def sequence_length(self) -> Any:
        """Tokens of the encoder, or of the only stack."""

    @property
    def decoder_sequence_length(self) -> Any:
        """Tokens of the decoder of t5."""

    @property
    def vocabulary_size(self) -> Any:
        """Padded rows of the embedding table."""


def layer_parameters(shape: Dimensions, decoder: bool = False) -> Any:
    """Count the trainable parameters of one layer.

    A LayerNorm follows each attention and the MLP, with 2 parameters per element.
    """
    norms = 3 if decoder else 2
    return count_parameters(classic_layer(shape, decoder), 0) + 2 * norms * shape.hidden_size


def stack_parameters(family: Family, shape: Dimensions) -> Any:
    """Count the trainable parameters of all layers."""
    count = shape.layers * layer_parameters(shape)
    if family == "t5":
        count = count + shape.layers * layer_parameters(shape, decoder=True)
    return count


def embedding_parameters(shape: Dimensions) -> Any:
    """Count word and position embeddings; the output uses the input's table."""
    return (shape.vocabulary_size + shape.sequence_length) * shape.hidden_size


def parameters(family: Family, shape: Dimensions | DecoderShape) -> Any:
    """Count the trainable parameters of a model.

    Examples
    --------
    >>> from repro.catalog.models.papers import model
    >>> gpt = model("gpt2-medium")
    >>> f"{parameters(gpt.family, gpt.full) / 1e6:.0f} million"
    '355 million'
    """
    if isinstance(shape, DecoderShape):
        return shape.count(shape.experts)
    h, vocabulary, norm = shape.hidden_size, shape.vocabulary_size, 2 * shape.hidden_size
    inner = embedding_parameters(shape) + stack_parameters(family, shape)
    if family == "gpt":
        return inner + norm
    if family == "bert":
        token_types = 2 * h
        masked_head = h * h + h + norm + vocabulary
        sentence_head = h * h + h + 2 * h + 2
        return inner + token_types + norm + masked_head + sentence_head
    # Megatron-Core's T5 blocks have no final norm; its head has a bias.
    return inner + vocabulary


def forward_flops(family: Family, shape: Dimensions | DecoderShape) -> Any:
    """Count the floating-point operations of the matmuls in one sequence's forward pass.

    With sequence length s and MLP width f, a layer has 8 s h^2 + 4 s^2 h + 4 s h f. The logits have
    2 s h v (Narayanan et al., SC 2021, appendix). With f = 4h the appendix gives the sum as 24 s L
    h^2 (1 + s/6h + v/12Lh). A `DecoderShape` has two operations per token for each matmul parameter
    that the token uses. Its attention scores are the same, with heads that may be wider.
    """
    if isinstance(shape, DecoderShape):
        layer = layers.forward_flops(decoder_layer(shape), {"own": shape.seq})
        return shape.layers * layer + 2 * shape.seq * shape.hidden * shape.vocab
    h, vocabulary, s = shape.hidden_size, shape.vocabulary_size, shape.sequence_length
    encoder = shape.layers * layers.forward_flops(classic_layer(shape), {"own": s})
    if family == "gpt":
        return encoder + 2 * s * h * vocabulary
    if family == "bert":
        return encoder + 2 * s * h * h + 2 * s * h * vocabulary
    d = shape.decoder_sequence_length
    # Queries and output see the decoder's tokens, keys and values the encoder's.
    crossing = layers.forward_flops(classic_layer(shape, cross=True), {"own": d, "encoder": s})
    return encoder + shape.layers * crossing + 2 * d * h * vocabulary


def training_flops(family: Family, shape: Dimensions | DecoderShape, sequences: Any) -> Any:
    """Count the operations of forward and backward passes without recomputation."""
    return (1 + BACKWARD_PER_FORWARD) * sequences * forward_flops(family, shape)


def gradient_bytes(
    family: Family, shape: Dimensions | DecoderShape, bytes_per_gradient: int
) -> Any:
    """Return the size S of the gradients that data-parallel ranks reduce each iteration."""
    return parameters(family, shape) * bytes_per_gradient


def ring_all_reduce_bytes(size_bytes: Any, ranks: Any) -> Any:
    """Return the bytes that each rank sends (and receives) in a ring all-reduce: 2 (n-1)/n S.

    No all-reduce moves fewer (Patarasuk and Yuan, 2009).
    """
    return 2 * (ranks - 1) / ranks * size_bytes
