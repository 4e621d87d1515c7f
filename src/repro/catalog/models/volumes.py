"""Parameters, FLOPs and bytes of one training step, from a model's shape alone.

The counts follow Megatron-Core's modules layer by layer, and are tested against them. They are
sums and products, so that they take one model's integers as well as arrays of many models.
"""

from typing import Any, Protocol

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.models.papers import Family

# A backward pass computes two products for each one of the forward pass: with respect to the
# inputs and to the weights (Narayanan et al., SC 2021, appendix).
BACKWARD_PER_FORWARD = 2
# The papers' Megatron-LM communicates in fp16; the testbed trains in fp32.
FULL_ELEMENT_BYTES, TESTBED_ELEMENT_BYTES = 2, 4


class Dimensions(Protocol):
    """The dimensions of a transformer, each an integer or an array: `Shape`, `Workload`."""

    @property
    def layers(self) -> Any: ...
    @property
    def hidden_size(self) -> Any: ...
    @property
    def ffn_hidden_size(self) -> Any: ...
    @property
    def sequence_length(self) -> Any: ...
    @property
    def decoder_sequence_length(self) -> Any: ...
    @property
    def vocabulary_size(self) -> Any: ...


def layer_parameters(shape: Dimensions, decoder: bool = False) -> Any:
    """Trainable parameters of one layer.

    With hidden size h and MLP width f: attention 4h^2 + 4h, MLP 2hf + f + h, a LayerNorm 2h. A
    decoder layer of an encoder-decoder model has two attentions and three norms.
    """
    h, f = shape.hidden_size, shape.ffn_hidden_size
    attention, mlp, norm = 4 * h * h + 4 * h, 2 * h * f + f + h, 2 * h
    return 2 * attention + mlp + 3 * norm if decoder else attention + mlp + 2 * norm


def stack_parameters(family: Family, shape: Dimensions) -> Any:
    """Trainable parameters of all layers."""
    layers = shape.layers * layer_parameters(shape)
    if family == "t5":
        layers = layers + shape.layers * layer_parameters(shape, decoder=True)
    return layers


def embedding_parameters(shape: Dimensions) -> Any:
    """Word and position embeddings; the output's table is the input's."""
    return (shape.vocabulary_size + shape.sequence_length) * shape.hidden_size


def parameters(family: Family, shape: Dimensions | DecoderShape) -> Any:
    """Trainable parameters of a whole model."""
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
    """Floating-point operations of the matrix products in one sequence's forward pass.

    With sequence length s and MLP width f: 8 s h^2 + 4 s^2 h + 4 s h f a layer, 2 s h v for the
    logits (Narayanan et al., SC 2021, appendix, which gives with f = 4h the sum
    24 s L h^2 (1 + s/6h + v/12Lh) for a forward pass). A decoder of today: two for each parameter
    of the products that a token meets, and the same scores, of heads that may be wider.
    """
    if isinstance(shape, DecoderShape):
        norms = (2 * shape.layers + 1) * shape.hidden
        met = shape.count(shape.experts_per_token) - norms - shape.vocab * shape.hidden
        return 2 * shape.seq * (met + 2 * shape.layers * shape.heads * shape.head_dim * shape.seq)
    h, f = shape.hidden_size, shape.ffn_hidden_size
    vocabulary, s = shape.vocabulary_size, shape.sequence_length
    encoder = shape.layers * (8 * s * h * h + 4 * s * s * h + 4 * s * h * f)
    if family == "gpt":
        return encoder + 2 * s * h * vocabulary
    if family == "bert":
        return encoder + 2 * s * h * h + 2 * s * h * vocabulary
    d = shape.decoder_sequence_length
    self_attention = 8 * d * h * h + 4 * d * d * h
    # Queries and output see the decoder's tokens, keys and values the encoder's.
    cross_attention = 4 * d * h * h + 4 * s * h * h + 4 * d * s * h
    decoder = shape.layers * (self_attention + cross_attention + 4 * d * h * f)
    return encoder + decoder + 2 * d * h * vocabulary


def training_flops(family: Family, shape: Dimensions | DecoderShape, sequences: Any) -> Any:
    """Operations of forward and backward pass of `sequences` sequences, nothing recomputed."""
    return (1 + BACKWARD_PER_FORWARD) * sequences * forward_flops(family, shape)


def gradient_bytes(
    family: Family, shape: Dimensions | DecoderShape, bytes_per_gradient: int
) -> Any:
    """Size S of the gradients that data-parallel ranks reduce each iteration."""
    return parameters(family, shape) * bytes_per_gradient


def ring_all_reduce_bytes(size_bytes: Any, ranks: Any) -> Any:
    """Bytes each rank sends (and receives) in a ring all-reduce: 2 (n-1)/n S.

    Patarasuk and Yuan, 2009: no all-reduce moves fewer.
    """
    return 2 * (ranks - 1) / ranks * size_bytes
