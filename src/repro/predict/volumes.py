"""Parameters, FLOPs and bytes of one training step, from a model's shape alone.

The counts follow Megatron-Core's modules layer by layer, and are tested against them.
"""

from repro.catalog.models import Family, Shape

# A backward pass computes two products for each one of the forward pass: with respect to the
# inputs and to the weights (Narayanan et al., SC 2021, appendix).
BACKWARD_PER_FORWARD = 2


def parameters(family: Family, shape: Shape) -> int:
    """Trainable parameters; output and input embeddings are one table.

    Per layer, with hidden size h: attention 4h^2 + 4h, MLP 8h^2 + 5h, a LayerNorm 2h.
    """
    h, vocabulary = shape.hidden_size, shape.vocabulary_size
    attention, mlp, norm = 4 * h * h + 4 * h, 8 * h * h + 5 * h, 2 * h
    layer = attention + mlp + 2 * norm
    embeddings = vocabulary * h + shape.sequence_length * h
    if family == "gpt":
        return embeddings + shape.layers * layer + norm
    if family == "bert":
        token_types = 2 * h
        masked_head = h * h + h + norm + vocabulary
        sentence_head = h * h + h + 2 * h + 2
        return embeddings + token_types + shape.layers * layer + norm + masked_head + sentence_head
    # Megatron-Core's T5 blocks have no final norm; its head has a bias.
    decoder_layer = 2 * attention + mlp + 3 * norm
    return embeddings + shape.layers * (layer + decoder_layer) + vocabulary


def forward_flops(family: Family, shape: Shape) -> int:
    """Floating-point operations of the matrix products in one sequence's forward pass.

    With sequence length s: 24 s h^2 + 4 s^2 h a layer, 2 s h v for the logits (Narayanan et al.,
    SC 2021, appendix, which gives the sum 24 s L h^2 (1 + s/6h + v/12Lh) for a forward pass).
    """
    h, vocabulary, s = shape.hidden_size, shape.vocabulary_size, shape.sequence_length
    encoder = shape.layers * (24 * s * h * h + 4 * s * s * h)
    if family == "gpt":
        return encoder + 2 * s * h * vocabulary
    if family == "bert":
        return encoder + 2 * s * h * h + 2 * s * h * vocabulary
    assert shape.decoder_sequence_length is not None
    d = shape.decoder_sequence_length
    self_attention = 8 * d * h * h + 4 * d * d * h
    # Queries and output see the decoder's tokens, keys and values the encoder's.
    cross_attention = 4 * d * h * h + 4 * s * h * h + 4 * d * s * h
    decoder = shape.layers * (self_attention + cross_attention + 16 * d * h * h)
    return encoder + decoder + 2 * d * h * vocabulary


def training_flops(family: Family, shape: Shape, sequences: int) -> int:
    """Operations of forward and backward pass of `sequences` sequences, nothing recomputed."""
    return (1 + BACKWARD_PER_FORWARD) * sequences * forward_flops(family, shape)


def gradient_bytes(family: Family, shape: Shape, bytes_per_gradient: int) -> int:
    """Size S of the gradients that data-parallel ranks reduce each iteration."""
    return parameters(family, shape) * bytes_per_gradient


def ring_all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes each rank sends (and receives) in a ring all-reduce: 2 (n-1)/n S.

    Patarasuk and Yuan, 2009: no all-reduce moves fewer.
    """
    return 2 * (ranks - 1) / ranks * size_bytes
