"""Time per output token on CPUs, from two numbers of a rank: rates of memory and products."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.models.open_models import DecoderShape
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


def _multiplied(shape: DecoderShape) -> int:
    """Weights that a token is multiplied with."""
    attention = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
    matrices = 3 if shape.gated_mlp else 2
    return shape.hidden * (shape.layers * (attention + matrices * shape.ffn) + shape.vocab)
