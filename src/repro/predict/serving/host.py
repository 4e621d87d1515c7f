"""Time per output token on CPUs, from two numbers of a rank: rates of memory and products; or from
what was measured of another decoder."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.open_models import DecoderShape
from repro.predict.operators.curves import Curve
from repro.predict.operators.kernels import joint
from repro.predict.workload import Array


@dataclass(frozen=True)
class Host:
    """One rank of a CPU: a socket, or some of its cores.

    Attributes
    ----------
    bytes_per_s
        At which weights and caches are read.
    flops
        Of products of matrices, in FLOP/s.
    reduce_s
        An all-reduce of a batch's hidden state among the ranks; 0 for one rank.
    """

    bytes_per_s: float
    flops: float
    reduce_s: float = 0.0


def output_token_s(
    shape: DecoderShape,
    host: Host,
    batch: Array | float,
    context: Array | float,
    weight_bytes: float,
    cache_bytes: float = 2.0,
    ranks: int = 1,
) -> Array:
    """Seconds in which each of `batch` sequences gets a token when `context` are cached.

    Each product reads its weights and computes, as products of GPUs do (`joint`); attention reads
    keys and values. Matrices and heads are split over the ranks, which sum up twice a layer.

    Returns
    -------
    Array
        In the shape to which batch and context broadcast.
    """
    b, context = np.broadcast_arrays(np.asarray(batch, float), np.asarray(context, float))
    weights = _multiplied(shape)
    read_s = np.full(b.shape, weight_bytes * weights / host.bytes_per_s)
    products = joint(2 * b * weights / host.flops, read_s)
    cached = 2 * shape.layers * shape.kv_heads * shape.head_dim * cache_bytes * b * context
    seconds: Array = (products + cached / host.bytes_per_s) / ranks
    return seconds + 2 * shape.layers * host.reduce_s * (ranks > 1)


@dataclass(frozen=True)
class Measured:
    """What one rank takes with two decoders of other shapes, between sizes that were measured.

    Attributes
    ----------
    shapes
        Of these decoders; their layers and weights are in different ratios.
    token_s
        A step of each, by batch, with the shortest caches.
    attention_s
        One layer's attention to its cache, by batch and context, with what it takes anyway.
    """

    shapes: tuple[DecoderShape, DecoderShape]
    token_s: tuple[Curve, Curve]
    attention_s: Curve


def measured_token_s(
    shape: DecoderShape, rank: Measured, batch: Array | float, context: Array | float
) -> Array:
    """As `output_token_s`, from what was measured of two other decoders.

    Each layer takes something, and each weight that a token is multiplied with: of a batch, what
    the steps of the two say, with all-reduces and the waiting for other ranks. A layer's attention
    to more than the shortest caches is added.
    """
    b, context = np.broadcast_arrays(np.asarray(batch, float), np.asarray(context, float))
    amounts = [[one.layers, _multiplied(one)] for one in (shape, *rank.shapes)]
    # How many steps of either make one of this decoder.
    shares = np.linalg.solve(np.transpose(amounts[1:]), amounts[0])
    steps_s = [step.seconds(b.reshape(-1, 1)) for step in rank.token_s]

    def attention_s(contexts: Array) -> Array:
        return rank.attention_s.seconds(np.stack([b.ravel(), contexts.ravel()], axis=-1))

    shortest = np.full(b.shape, rank.attention_s.axes[1][0])
    longer_s = attention_s(context) - attention_s(shortest)
    found: Array = (shares @ steps_s + shape.layers * longer_s).reshape(b.shape)
    return found


def _multiplied(shape: DecoderShape) -> int:
    """Weights that a token is multiplied with."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    matrices = 3 if shape.gated_mlp else 2
    return shape.hidden * (shape.layers * (attention + matrices * shape.ffn) + shape.vocab)
