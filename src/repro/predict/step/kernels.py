"""Times of single kernels on a GPU: matrix products by tiles and waves, the rest by traffic."""

from dataclasses import dataclass

import numpy as np

from repro.catalog.systems.gpus import Gpu
from repro.predict.parameters import Parameters
from repro.predict.workload import Array

# Output tiles of one multiprocessor and depth of its pipeline, as in cuBLAS's and CUTLASS's usual
# half-precision kernels; narrow products have tiles of half the width.
_TILE, _NARROW_TILE, _DEPTH = 128, 64, 64
_BYTES = 2


@dataclass(frozen=True)
class Kernels:
    """Kernel times on one GPU, in seconds."""

    gpu: Gpu
    parameters: Parameters

    def gemm_s(self, m: Array, n: Array, k: Array) -> Array:
        """Product of (m, k) and (k, n) in half precision."""
        return self._product_s(m, n, k, np.ones(()), self.parameters.gemm_efficiency)

    def attention_gemm_s(self, m: Array, n: Array, k: Array, batch: Array) -> Array:
        """`batch` independent products of (m, k) and (k, n)."""
        return self._product_s(m, n, k, batch, self.parameters.attention_gemm_efficiency)

    def traffic_s(self, size_bytes: Array) -> Array:
        """Element-wise work that reads and writes `size_bytes` of GPU memory."""
        return size_bytes / (self.gpu.memory_gbytes_per_s * 1e9 * self.parameters.memory_efficiency)

    def _product_s(self, m: Array, n: Array, k: Array, batch: Array, efficiency: float) -> Array:
        """The longer of computing (whole tiles, in waves over the multiprocessors) and traffic."""
        width = np.where(n <= _NARROW_TILE, _NARROW_TILE, _TILE)
        tiles = np.ceil(m / _TILE) * np.ceil(n / width) * batch
        waves = tiles / self.gpu.multiprocessors
        partial = 1 + self.parameters.wave_loss * (np.ceil(waves) / waves - 1)
        flops = (2.0 * _TILE * _DEPTH) * tiles * width * np.ceil(k / _DEPTH)
        computing = flops * partial / (self.gpu.peak_flops * efficiency)
        moved = (_BYTES * batch) * (m * k + k * n + m * n)
        return np.maximum(computing, self.traffic_s(moved)) + self.parameters.kernel_s
