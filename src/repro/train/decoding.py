"""A decoder with a cache of keys and values, which writes a token to each sequence at a time.

Megatron-Core's inference engines ask CUDA for memory and streams, so that on CPUs this one stands
for them: the layers of `DecoderShape` in torch, split over ranks as Megatron-Core splits them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as functional

from repro.catalog.decoding import Rates, Weights
from repro.catalog.open_models import DecoderShape

# Matrices that rates are measured with: more of them than any cache holds; rows of a large product.
_WIDTH, _MATRICES, _ROWS, _REDUCES = 4096, 12, 512, 20
_BASE = 10_000.0


class Linear:
    """A product with weights in bf16, or in int8 with a scale for each row."""

    def __init__(self, full: torch.Tensor, weights: Weights):
        self._weight = full
        self._scale: torch.Tensor | None = None
        if weights == "int8":
            scale = full.abs().amax(dim=1) / 127
            self._weight = (full / scale[:, None]).round().to(torch.int8)
            self._scale = scale

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._scale is None:
            return functional.linear(rows, self._weight)
        return torch._weight_int8pack_mm(rows, self._weight, self._scale)


def random_matrix(outputs: int, inputs: int, generator: torch.Generator) -> torch.Tensor:
    """A matrix in bf16 that keeps the size of what it is multiplied with."""
    full = torch.empty(outputs, inputs, dtype=torch.bfloat16)
    bound = (3 / inputs) ** 0.5
    return full.uniform_(-bound, bound, generator=generator)


@dataclass(frozen=True)
class _Layer:
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear


class Decoder:
    """One rank's part of a model: its heads, its columns of the MLP, its caches.

    Parameters
    ----------
    shape
        Its MLP is gated and dense.
    weights
        Precision of all products; hidden states and caches are in bf16.
    rank, ranks
        Of tensor parallelism; where there are several, they have joined a process group.
    """

    def __init__(self, shape: DecoderShape, weights: Weights, rank: int = 0, ranks: int = 1):
        generator = torch.Generator().manual_seed(0)
        self._shape, self._ranks = shape, ranks
        self._heads, self._kv_heads = shape.heads // ranks, shape.kv_heads // ranks
        h, width = shape.hidden, shape.heads * shape.head_dim
        kept = shape.kv_heads * shape.head_dim

        def part(outputs: int, inputs: int, dim: int = 0) -> torch.Tensor:
            return random_matrix(outputs, inputs, generator).chunk(ranks, dim)[rank].contiguous()

        def linear(*parts: torch.Tensor) -> Linear:
            return Linear(torch.cat(parts), weights)

        self._layers = [
            _Layer(
                linear(part(width, h), part(kept, h), part(kept, h)),
                linear(part(h, width, dim=1)),
                linear(part(shape.ffn, h), part(shape.ffn, h)),
                linear(part(h, shape.ffn, dim=1)),
            )
            for _ in range(shape.layers)
        ]
        self._embedding = torch.randn(shape.vocab, h, generator=generator).to(torch.bfloat16)
        self._logits = linear(part(shape.vocab, h))
        self._norm = torch.ones(h, dtype=torch.bfloat16)
        self._cache = torch.empty(0)
        self._length = 0

    def fill(self, batch: int, context: int, room: int) -> None:
        """Take `batch` sequences of `context` cached tokens, with room for as many more."""
        size = (batch, self._kv_heads, context + room, self._shape.head_dim)
        self._cache = torch.zeros(self._shape.layers, 2, *size, dtype=torch.bfloat16)
        self._cache[..., :context, :] = 1 / self._shape.head_dim
        self._length = context

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The most probable next token of each sequence, whose last ones these are."""
        hidden = functional.embedding(tokens, self._embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            hidden = hidden + self._reduced(layer.out(self._attended(layer, cache, hidden)))
            gate, up = layer.up(self._normed(hidden)).chunk(2, dim=-1)
            hidden = hidden + self._reduced(layer.down(functional.silu(gate) * up))
        self._length += 1
        logits = self._logits(self._normed(hidden))
        if self._ranks > 1:
            parts = [torch.empty_like(logits) for _ in range(self._ranks)]
            dist.all_gather(parts, logits)
            logits = torch.cat(parts, dim=-1)
        return logits.argmax(dim=-1)

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self._shape.hidden,), self._norm)

    def _attended(self, layer: _Layer, cache: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        d, at = self._shape.head_dim, self._length
        projected = layer.qkv(self._normed(hidden)).view(len(hidden), -1, 1, d)
        q, k, v = torch.split(projected, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        keys, values = cache
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = self._turned(k), v
        seen = slice(0, at + 1)
        # Queries that share keys are rows of one product, which reads these once.
        grouped = self._turned(q).view(len(hidden), self._kv_heads, -1, d)
        attended = functional.scaled_dot_product_attention(
            grouped, keys[:, :, seen], values[:, :, seen]
        )
        return attended.flatten(1)

    def _turned(self, heads: torch.Tensor) -> torch.Tensor:
        """Rotary embeddings of the current position."""
        half = self._shape.head_dim // 2
        angle = self._length * _BASE ** (-torch.arange(half) / half)
        cos, sin = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _reduced(self, partial: torch.Tensor) -> torch.Tensor:
        if self._ranks > 1:
            dist.all_reduce(partial)
        return partial


def step_times_s(decoder: Decoder, batch: int, context: int, steps: int) -> Sequence[float]:
    """Seconds of each of so many steps, after one that warms up."""
    decoder.fill(batch, context, steps + 1)
    tokens = decoder.step(torch.zeros(batch, dtype=torch.long))
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        tokens = decoder.step(tokens)
        times.append(time.perf_counter() - start)
    return times


class Probe:
    """What a rank's predictions start from: one row times matrices larger than caches, many rows
    times one of them, an all-reduce of `state` elements in bf16. All ranks measure at once."""

    def __init__(self, weights: Weights, state: int, ranks: int):
        generator = torch.Generator().manual_seed(2)
        self._matrices = [
            Linear(random_matrix(_WIDTH, _WIDTH, generator), weights) for _ in range(_MATRICES)
        ]
        self._bytes = _MATRICES * _WIDTH**2 * {"bf16": 2, "int8": 1}[weights]
        self._row, self._rows = (
            torch.ones(count, _WIDTH, dtype=torch.bfloat16) for count in (1, _ROWS)
        )
        self._state, self._ranks = torch.ones(state, dtype=torch.bfloat16), ranks
        self.measure()

    @torch.inference_mode()
    def measure(self) -> Rates:
        """All of them once."""
        read = _seconds(lambda: [one(self._row) for one in self._matrices])
        computed = _seconds(lambda: self._matrices[0](self._rows))
        return Rates(self._bytes / read, 2 * _ROWS * _WIDTH**2 / computed, self._reduce_s())

    def _reduce_s(self) -> float:
        if self._ranks == 1:
            return 0.0
        # Ranks come from products that took them differently long.
        dist.barrier()
        reduces = _seconds(lambda: [dist.all_reduce(self._state) for _ in range(_REDUCES)])
        return reduces / _REDUCES


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
