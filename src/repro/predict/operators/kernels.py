"""Times of single kernels on a GPU: work over rates, in whole tiles and waves.

Functions price the kernels of today's libraries, with costs that were fitted to single kernels.
`Kernels` prices those of 2021, with fractions of peaks that were fitted to training iterations.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from repro.catalog.reading import Entry
from repro.catalog.systems.gpus import Gpu
from repro.predict.network.links import regime_times
from repro.predict.parameters import Parameters
from repro.predict.workload import Array

# Output tiles of large and of small products, and the depth of a step along k, as in cuBLAS's and
# CUTLASS's usual kernels. In 2021 tiles were square, and narrow products had half the width.
_TILES, _DEPTH = ((128, 256), (64, 64)), 64
_TILE, _NARROW_TILE = 128, 64
# Queries of a block of fused attention.
_QUERIES = 128
_HALF_BYTES = 2


class ProductCosts(Entry):
    """Costs of matrix products on one GPU in one precision; times in seconds.

    efficiency
        Fraction of the peak that a tile without edges would reach.
    edge_loss
        Loss of tiles by loading their operands: rate over 1 + edge_loss x 64 (1/rows + 1/columns).
    wave_loss
        Fraction of the last wave's idle multiprocessors that costs time.
    ramp_s
        Time to fill and empty the pipeline of a wave of tiles.
    split_depth
        Elements along k that are worth a block of their own where tiles are fewer than
        multiprocessors.
    memory_efficiency
        Fraction of the memory's peak rate.
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
    """Costs of fused attention on one GPU in one precision.

    efficiency
        Fraction of half precision's peak, for long sequences with heads of 128.
    short_tokens
        Sequence length at which half of that is reached.
    narrow_loss
        Loss of heads narrower than 128: rate over 1 + narrow_loss x (128/width - 1).
    memory_efficiency
        Fraction of the memory's peak rate, for caches of keys and values.
    launch_s
        Start and end of its kernels, in seconds.
    """

    efficiency: PositiveFloat
    short_tokens: NonNegativeFloat
    narrow_loss: NonNegativeFloat
    memory_efficiency: PositiveFloat
    launch_s: NonNegativeFloat


class CollectiveCosts(Entry):
    """Costs of one collective among the GPUs of a node in one precision.

    launch_s, hop_s, startup_s, startup_bytes
        Costs in addition to the transfer, as in `repro.predict.network.links.Costs`.
    efficiency
        Fraction of the links' rate, where all GPUs take part.
    few_loss
        Loss of fewer ranks: rate over 1 + few_loss x (8 / ranks - 1).
    switch_efficiency
        Fraction of the links' rate where switches add up (NVLink SHARP); 0 where they do not.
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
    """Peaks of a GPU: FLOP/s in the kernel's precision, and bytes/s of links in one direction."""

    flops: Any
    memory_bytes_per_s: Any
    multiprocessors: Any
    link_bytes_per_s: Any = float("nan")


@dataclass(frozen=True)
class Multiplier:
    """GPU that multiplies in one precision: seconds of a step along k of each tile, and of a byte.

    `costs` are `ProductCosts`, or have its fields as arrays.
    """

    multiprocessors: Any
    tile_s: tuple[Any, ...]
    byte_s: Any
    costs: Any


def multiplier(rates: Rates, costs: Any) -> Multiplier:
    """Compute the times that all products of one GPU and precision have in common."""
    operation_s = rates.multiprocessors / (rates.flops * costs.efficiency)
    tile_s = tuple(
        (1 + costs.edge_loss * (64 / rows + 64 / columns))
        * ((2.0 * rows * columns * _DEPTH) * operation_s)
        for rows, columns in _TILES
    )
    byte_s = 1 / (rates.memory_bytes_per_s * costs.memory_efficiency)
    return Multiplier(rates.multiprocessors, tile_s, byte_s, costs)


def product_s(
    m: Array, n: Array, k: Array, operand_bytes: Any, on: Multiplier, batch: Any = 1.0
) -> Array:
    """Predict seconds of `batch` products of (m, k) and (k, n) with results in half precision."""
    costs, per_wave = on.costs, 1 / on.multiprocessors
    results = (_HALF_BYTES * batch) * (m * n)
    deepest, steps = np.maximum(k / costs.split_depth, 1.0), k * (1 / _DEPTH)
    # Parts along k are summed up in fp32.
    summing_s = (2 * on.byte_s) * results
    best: Any = np.inf
    for (rows, columns), tile_s in zip(_TILES, on.tile_s, strict=True):
        tiles = np.ceil(m * (1 / rows)) * np.ceil(n * (1 / columns)) * batch
        split = np.minimum(np.maximum(np.floor(on.multiprocessors / tiles), 1.0), deepest)
        waves = tiles * split * per_wave
        waves = np.maximum(waves + costs.wave_loss * (np.ceil(waves) - waves), 1.0)
        computing = waves * (np.ceil(steps / split) * tile_s + costs.ramp_s)
        summing = (split > 1) * (split + 1) * summing_s
        best = np.minimum(best, computing + summing)
    moved = (operand_bytes * batch) * k * (m + n) + results
    seconds: Array = joint(best, moved * on.byte_s) + costs.launch_s
    return seconds


def cast_s(m: Array, k: Array, operand_bytes: Any, rates: Rates, costs: Any) -> Array:
    """Predict seconds of casting (m, k) from half precision: its largest value, then elements."""
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
    """Predict seconds of causal self-attention of whole sequences, forward.

    A head of a sequence has 4 s^2 d operations, of which causality needs half (Dao, 2023, section
    3.1). `rates.flops` are half precision's in any precision.
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
    """Predict seconds of attention of one new token per sequence, which reads `tokens` cached."""
    moved = 2.0 * cache_bytes * sequences * tokens * kv_heads * head_dim
    blocks = sequences * kv_heads * np.ceil(tokens / _QUERIES)
    busy = np.minimum(blocks / rates.multiprocessors, 1.0)
    rate = rates.memory_bytes_per_s * costs.memory_efficiency * busy
    seconds: Array = moved / rate + costs.launch_s
    return seconds


def node_collective_s(
    link_bytes: Array, steps: Array, ranks: Array, rates: Rates, costs: CollectiveCosts
) -> Array:
    """Predict seconds of a collective in a node whose ring puts `link_bytes` on each GPU's links.

    NCCL takes a ring or the switches, whichever is faster. Where switches add up, each of n ranks
    sends its buffer once and its n-th of the sum once: n + 1 parts instead of a ring's 2 (n - 1).
    """
    rate = rates.link_bytes_per_s * costs.efficiency / (1 + costs.few_loss * (8 / ranks - 1))
    transfer = link_bytes / rate
    if costs.switch_efficiency:
        # One rank sends nothing.
        switched = (ranks + 1) / (2 * np.maximum(ranks - 1, 1)) * link_bytes
        reach = rates.link_bytes_per_s * costs.switch_efficiency
        transfer = np.minimum(transfer, switched / reach)
    return regime_times(link_bytes, steps, transfer, costs).time_s


def joint(computing: Array, traffic: Array) -> Array:
    """Predict seconds of computing and traffic that overlap, but less where they take as long.

    The result is the fourth root of the sum of their fourth powers.
    """
    # `np.hypot` takes ten times as long, to avoid overflows that no time has.
    squares = computing * computing, traffic * traffic
    together: Array = np.sqrt(np.sqrt(squares[0] * squares[0] + squares[1] * squares[1]))
    return together


@dataclass(frozen=True)
class Kernels:
    """Kernels of 2021 on one GPU."""

    gpu: Gpu
    parameters: Parameters

    def gemm_s(self, m: Array, n: Array, k: Array) -> Array:
        """Predict seconds of a product of (m, k) and (k, n) in half precision."""
        return self._product_s(m, n, k, np.ones(()), self.parameters.gemm_efficiency)

    def attention_gemm_s(self, m: Array, n: Array, k: Array, batch: Array) -> Array:
        """Predict seconds of `batch` independent products of (m, k) and (k, n)."""
        return self._product_s(m, n, k, batch, self.parameters.attention_gemm_efficiency)

    def traffic_s(self, size_bytes: Array) -> Array:
        """Predict seconds of element-wise work that moves `size_bytes` of GPU memory."""
        return size_bytes / (self.gpu.memory_gbytes_per_s * 1e9 * self.parameters.memory_efficiency)

    def _product_s(self, m: Array, n: Array, k: Array, batch: Array, efficiency: float) -> Array:
        """Return the longer of computing (whole tiles in waves) and traffic."""
        width = np.where(n <= _NARROW_TILE, _NARROW_TILE, _TILE)
        tiles = np.ceil(m / _TILE) * np.ceil(n / width) * batch
        waves = tiles / self.gpu.multiprocessors
        partial = 1 + self.parameters.wave_loss * (np.ceil(waves) / waves - 1)
        flops = (2.0 * _TILE * _DEPTH) * tiles * width * np.ceil(k / _DEPTH)
        computing = flops * partial / (self.gpu.peak_flops * efficiency)
        moved = (_HALF_BYTES * batch) * (m * k + k * n + m * n)
        return np.maximum(computing, self.traffic_s(moved)) + self.parameters.kernel_s
