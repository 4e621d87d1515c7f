"""How long a product and an attention take on a GPU: work over rates, in whole tiles and waves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from repro.catalog.reading import Entry
from repro.predict.network.links import regime_times
from repro.predict.workload import Array

# Output tiles of large and of small products, and the depth of a step along k, as in cuBLAS's and
# CUTLASS's usual kernels.
_TILES, _DEPTH = ((128, 256), (64, 64)), 64
# Queries of a block of fused attention.
_QUERIES = 128
_HALF_BYTES = 2


class ProductCosts(Entry):
    """Of matrix products on one GPU in one precision.

    efficiency
        Of the peak, that a tile without edges would reach.
    edge_loss
        What tiles lose by loading their operands: rate over
        1 + edge_loss x 64 (1/rows + 1/columns).
    wave_loss
        How much of the last wave's idle multiprocessors costs time (0 none, 1 all of it).
    ramp_s
        Filling and emptying the pipeline of a wave of tiles.
    split_depth
        Elements along k that are worth a block of their own where tiles are fewer than
        multiprocessors.
    memory_efficiency
        Of the memory's peak rate.
    launch_s
        Start and end of a kernel.
    cast_s
        Start and end of the kernels that cast (m, k) to a precision below half.
    """

    efficiency: PositiveFloat
    edge_loss: NonNegativeFloat
    wave_loss: NonNegativeFloat
    ramp_s: NonNegativeFloat
    split_depth: PositiveFloat
    memory_efficiency: PositiveFloat
    launch_s: NonNegativeFloat
    cast_s: NonNegativeFloat = 0.0


class AttentionCosts(Entry):
    """Of fused attention on one GPU in one precision.

    efficiency
        Of half precision's peak, for long sequences with heads of 128.
    short_tokens
        The sequence at which half of that is reached.
    narrow_loss
        What heads narrower than 128 lose: rate over 1 + narrow_loss x (128/width - 1).
    memory_efficiency
        Of the memory's peak rate, for caches of keys and values.
    launch_s
        Start and end of its kernels.
    """

    efficiency: PositiveFloat
    short_tokens: NonNegativeFloat
    narrow_loss: NonNegativeFloat
    memory_efficiency: PositiveFloat
    launch_s: NonNegativeFloat


class CollectiveCosts(Entry):
    """Of one collective among the GPUs of a node in one precision.

    launch_s, hop_s
        Once, and for each message that waits for another one.
    startup_s, startup_bytes
        What the pipeline of large buffers costs once messages fill it, and the bytes on a rank's
        link at which half of that has set in.
    efficiency
        Of the links' rate, where all GPUs take part.
    few_loss
        What fewer ranks lose: rate over 1 + few_loss x (8 / ranks - 1).
    switch_efficiency
        Of the links' rate, where switches add up (NVLink SHARP); 0 where they do not.
    """

    launch_s: NonNegativeFloat
    hop_s: NonNegativeFloat
    startup_s: NonNegativeFloat
    startup_bytes: PositiveFloat
    efficiency: PositiveFloat
    few_loss: NonNegativeFloat
    switch_efficiency: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class Rates:
    """A GPU's peaks: FLOP/s in the kernel's precision, bytes/s of its memory, multiprocessors, and
    bytes/s of its links in one direction."""

    flops: Any
    memory_bytes_per_s: Any
    multiprocessors: Any
    link_bytes_per_s: Any = float("nan")


@dataclass(frozen=True)
class Multiplier:
    """What all products of one GPU and precision have in common, with its multiprocessors.

    `tile_s` is the time of a step along k of a tile of each size, `byte_s` that of a byte; the rest
    is as in `ProductCosts`.
    """

    multiprocessors: Any
    tile_s: tuple[Any, ...]
    byte_s: Any
    wave_loss: Any
    ramp_s: Any
    split_depth: Any
    launch_s: Any


def multiplier(rates: Rates, costs: Any) -> Multiplier:
    """A GPU that multiplies; `costs` are `ProductCosts`, or have its fields as arrays."""
    operation_s = rates.multiprocessors / (rates.flops * costs.efficiency)
    tile_s = tuple(
        (1 + costs.edge_loss * (64 / rows + 64 / columns))
        * ((2.0 * rows * columns * _DEPTH) * operation_s)
        for rows, columns in _TILES
    )
    byte_s = 1 / (rates.memory_bytes_per_s * costs.memory_efficiency)
    return Multiplier(
        rates.multiprocessors,
        tile_s,
        byte_s,
        costs.wave_loss,
        costs.ramp_s,
        costs.split_depth,
        costs.launch_s,
    )


def product_s(
    m: Array, n: Array, k: Array, operand_bytes: Any, on: Multiplier, batch: Any = 1.0
) -> Array:
    """`batch` products of (m, k) and (k, n) with a result in half precision, in seconds."""
    per_wave = 1 / on.multiprocessors
    results = (_HALF_BYTES * batch) * (m * n)
    deepest, steps = np.maximum(k / on.split_depth, 1.0), k * (1 / _DEPTH)
    # Parts along k are summed up in fp32.
    summing_s = (2 * on.byte_s) * results
    best: Any = np.inf
    for (rows, columns), tile_s in zip(_TILES, on.tile_s, strict=True):
        tiles = np.ceil(m * (1 / rows)) * np.ceil(n * (1 / columns)) * batch
        split = np.minimum(np.maximum(np.floor(on.multiprocessors / tiles), 1.0), deepest)
        waves = tiles * split * per_wave
        waves = np.maximum(waves + on.wave_loss * (np.ceil(waves) - waves), 1.0)
        computing = waves * (np.ceil(steps / split) * tile_s + on.ramp_s)
        summing = (split > 1) * (split + 1) * summing_s
        best = np.minimum(best, computing + summing)
    moved = (operand_bytes * batch) * k * (m + n) + results
    seconds: Array = joint(best, moved * on.byte_s) + on.launch_s
    return seconds


def cast_s(m: Array, k: Array, operand_bytes: Any, rates: Rates, costs: Any) -> Array:
    """Casting (m, k) from half precision, in seconds: its largest value, then its elements."""
    moved = (2 * _HALF_BYTES + operand_bytes) * m * k
    seconds: Array = moved / (rates.memory_bytes_per_s * costs.memory_efficiency) + costs.cast_s
    return seconds


def attention_s(
    sequences: Array,
    tokens: Array,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    rates: Rates,
    costs: Any,
) -> Array:
    """Causal self-attention of whole sequences, forward, in seconds.

    4 s^2 d operations a head and sequence, of which causality needs half (Dao, 2023, section 3.1).
    `rates.flops` are half precision's, whatever the precision: `costs` have the fraction of them.
    """
    flops = 2.0 * sequences * heads * tokens**2 * head_dim
    rate = rates.flops * costs.efficiency * tokens / (tokens + costs.short_tokens)
    rate = rate / (1 + costs.narrow_loss * np.maximum(128 / head_dim - 1, 0.0))
    blocks = sequences * heads * np.ceil(tokens / _QUERIES)
    idle = np.maximum(rates.multiprocessors / blocks, 1.0)
    moved = _HALF_BYTES * sequences * tokens * head_dim * (2 * heads + 2 * kv_heads)
    traffic = moved / (rates.memory_bytes_per_s * costs.memory_efficiency)
    seconds: Array = joint(flops * idle / rate, traffic) + costs.launch_s
    return seconds


def decoding_s(
    sequences: Array,
    tokens: Array,
    kv_heads: Array,
    head_dim: Array,
    cache_bytes: Any,
    rates: Rates,
    costs: Any,
) -> Array:
    """Attention of one new token of each sequence to `tokens` cached ones: reading the cache."""
    moved = 2.0 * cache_bytes * sequences * tokens * kv_heads * head_dim
    blocks = sequences * kv_heads * np.ceil(tokens / _QUERIES)
    busy = np.minimum(blocks / rates.multiprocessors, 1.0)
    rate = rates.memory_bytes_per_s * costs.memory_efficiency * busy
    seconds: Array = moved / rate + costs.launch_s
    return seconds


def collective_s(
    link_bytes: Array, steps: Array, ranks: Array, rates: Rates, costs: CollectiveCosts
) -> Array:
    """A collective of `ranks` GPUs of a node that puts `link_bytes` on each one's links, as a ring.

    NCCL takes what is faster. Where switches add up, each of n ranks gives its buffer once and
    sends its n-th of the sum once, which the switch copies to all: n + 1 parts instead of a ring's
    2 (n - 1).
    """
    rate = rates.link_bytes_per_s * costs.efficiency / (1 + costs.few_loss * (8 / ranks - 1))
    transfer = link_bytes / rate
    if costs.switch_efficiency:
        switched = (ranks + 1) / (2 * (ranks - 1)) * link_bytes
        reach = rates.link_bytes_per_s * costs.switch_efficiency
        transfer = np.minimum(transfer, switched / reach)
    return regime_times(link_bytes, steps, transfer, costs).time_s


def joint(computing: Array, traffic: Array) -> Array:
    """Both overlap, though not where they take as long: the norm of their fourth powers."""
    # Not `np.hypot`, which takes ten times as long to be safe from numbers that no time is.
    squares = computing * computing, traffic * traffic
    together: Array = np.sqrt(np.sqrt(squares[0] * squares[0] + squares[1] * squares[1]))
    return together
