"""A decoder with a cache of keys and values, which writes a token to each sequence at a time.

Megatron-Core's inference engines ask CUDA for memory and streams, so that on CPUs this one stands
for them: the layers of `DecoderShape` in torch, split over ranks as Megatron-Core splits them. On a
GPU it is what the performance model's serving is judged on.
"""

import math
import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as functional

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.studies.decoding import Weights
from repro.catalog.studies.gpu import GpuWeights

# Calls of attention of which the median is taken, with one sequence.
_ATTENDED = 10
_BASE = 10_000.0
# Numbers of a matrix that differ, a prime, so that rows do too: to draw all takes longer than what
# is measured.
_DRAWN = 1_048_583
_EIGHTH = torch.float8_e4m3fn
_Turns = tuple[torch.Tensor, torch.Tensor]


class Linear:
    """A product with weights in bf16, in int8 with a scale for each row, or in fp8 (E4M3) with one
    for all: then what they are multiplied with is cast as it is, as by scales known beforehand.
    What it is made of is used up."""

    def __init__(self, full: torch.Tensor, weights: Weights | GpuWeights):
        self._weight = full
        self._scale: torch.Tensor | None = None
        if weights == "int8":
            scale = full.abs().amax(dim=1) / 127
            self._weight = full.div_(scale[:, None]).round_().to(torch.int8)
            self._scale = scale
        if weights == "fp8":
            self._scale = (full.abs().amax() / torch.finfo(_EIGHTH).max).float()
            self._weight = (full / self._scale).to(_EIGHTH)
            self._one = torch.ones_like(self._scale)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._scale is None:
            return functional.linear(rows, self._weight)
        flat = rows.flatten(0, -2)
        if self._weight.dtype == _EIGHTH:
            flat = scaled_product(flat.to(_EIGHTH), self._weight, self._one, self._scale)
        else:
            flat = torch._weight_int8pack_mm(flat, self._weight, self._scale)
        return flat.view(*rows.shape[:-1], -1)


def scaled_product(
    rows: torch.Tensor, weight: torch.Tensor, rows_scale: torch.Tensor, weight_scale: torch.Tensor
) -> torch.Tensor:
    """A product in bf16 of what is in fp8 (E4M3), as a linear layer multiplies."""
    product: torch.Tensor = torch._scaled_mm(
        rows,
        weight.t(),
        scale_a=rows_scale,
        scale_b=weight_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return product


def random_matrix(outputs: int, inputs: int, generator: torch.Generator) -> torch.Tensor:
    """A matrix in bf16 that keeps the size of what it is multiplied with."""
    bound = (3 / inputs) ** 0.5
    size = min(_DRAWN, outputs * inputs)
    drawn = torch.empty(size, dtype=torch.bfloat16, device=generator.device)
    drawn.uniform_(-bound, bound, generator=generator)
    times = -(-outputs * inputs // len(drawn))
    return drawn.repeat(times)[: outputs * inputs].view(outputs, inputs)


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
        Precision of all products; where they are in fp8, the one with the vocabulary is in bf16,
        as engines have it. Hidden states and caches are in bf16.
    rank, ranks
        Of tensor parallelism; where there are several, they have joined a process group.
    device
        Where it is: `cpu` or `cuda`.
    """

    def __init__(
        self,
        shape: DecoderShape,
        weights: Weights | GpuWeights,
        rank: int = 0,
        ranks: int = 1,
        device: str = "cpu",
    ):
        generator = torch.Generator(device).manual_seed(0)
        self._shape, self._ranks = shape, ranks
        self._heads, self._kv_heads = shape.heads // ranks, shape.kv_heads // ranks
        h, width = shape.hidden, shape.heads * shape.head_dim
        kept = shape.kv_heads * shape.head_dim

        def part(outputs: int, inputs: int, dim: int = 0) -> torch.Tensor:
            return random_matrix(outputs, inputs, generator).chunk(ranks, dim)[rank].contiguous()

        def linear(*parts: torch.Tensor) -> Linear:
            return Linear(torch.cat(parts) if len(parts) > 1 else parts[0], weights)

        self._layers = [
            _Layer(
                linear(part(width, h), part(kept, h), part(kept, h)),
                linear(part(h, width, dim=1)),
                linear(part(shape.ffn, h), part(shape.ffn, h)),
                linear(part(h, shape.ffn, dim=1)),
            )
            for _ in range(shape.layers)
        ]
        drawn = torch.randn(shape.vocab, h, generator=generator, device=device)
        self._embedding = drawn.to(torch.bfloat16)
        self._logits = Linear(part(shape.vocab, h), "bf16" if weights == "fp8" else weights)
        self._norm = torch.ones(h, dtype=torch.bfloat16, device=device)
        self._memory = self._cache = torch.empty(0, dtype=torch.bfloat16, device=device)
        self._length = 0

    def fill(self, batch: int, context: int, room: int) -> None:
        """Take `batch` sequences of `context` cached tokens, with room for as many more; ranks are
        done together."""
        size = (batch, self._kv_heads, context + room, self._shape.head_dim)
        needed = self._shape.layers * 2 * math.prod(size)
        # Mapped once: that takes longer than the steps that are measured.
        if len(self._memory) < needed:
            # What it had is gone before: both may not fit a GPU.
            self._memory = self._cache = torch.empty_like(self._memory[:0])
            self._memory = torch.empty(needed, dtype=self._memory.dtype, device=self._memory.device)
        self._cache = self._memory[:needed].view(self._shape.layers, 2, *size)
        self._cache[..., :context, :] = 1 / self._shape.head_dim
        self._length = context
        if self._ranks > 1:
            dist.barrier()

    def drawn_tokens(self, *size: int) -> torch.Tensor:
        """Random ones: rows that are alike draw less power, and a GPU multiplies them faster."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(self._shape.vocab, size, generator=generator)
        return drawn.to(self._norm.device)

    def rewind(self, context: int) -> None:
        """Forget what was cached behind so many tokens."""
        self._length = context

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The most probable next token of each sequence, whose last ones these are."""
        return self._next(self._passed(tokens[:, None])[:, -1])

    @torch.inference_mode()
    def read(self, prompts: torch.Tensor) -> torch.Tensor:
        """The most probable next token of each prompt (sequence, token); nothing is cached yet."""
        assert self._length == 0
        return self._next(self._passed(prompts)[:, -1])

    def _passed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states (sequence, token, hidden) of tokens that come after what is cached."""
        hidden, turns = functional.embedding(tokens, self._embedding), self._turns(tokens.shape[1])
        for layer, cache in zip(self._layers, self._cache, strict=True):
            attended = self._attended(layer, cache, hidden, turns)
            hidden = hidden + self._reduced(layer.out(attended))
            gate, up = layer.up(self._normed(hidden)).chunk(2, dim=-1)
            hidden = hidden + self._reduced(layer.down(functional.silu(gate) * up))
        self._length += tokens.shape[1]
        return hidden

    def _next(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._logits(self._normed(hidden))
        if self._ranks > 1:
            parts = [torch.empty_like(logits) for _ in range(self._ranks)]
            dist.all_gather(parts, logits)
            logits = torch.cat(parts, dim=-1)
        return logits.argmax(dim=-1)

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self._shape.hidden,), self._norm)

    def _attended(
        self, layer: _Layer, cache: torch.Tensor, hidden: torch.Tensor, turns: _Turns
    ) -> torch.Tensor:
        d, at, new = self._shape.head_dim, self._length, hidden.shape[1]
        projected = layer.qkv(self._normed(hidden)).view(*hidden.shape[:2], -1, d).transpose(1, 2)
        q, k, v = torch.split(projected, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        q, k = _turned(q, turns), _turned(k, turns)
        keys, values = cache
        keys[:, :, at : at + new], values[:, :, at : at + new] = k, v
        if new > 1:
            attended = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self._heads != self._kv_heads
            )
            return attended.transpose(1, 2).flatten(2)
        seen = slice(0, at + 1)
        # Queries that share keys are rows of one product, which reads these once.
        grouped = q.reshape(len(hidden), self._kv_heads, -1, d)
        attended = functional.scaled_dot_product_attention(
            grouped, keys[:, :, seen], values[:, :, seen]
        )
        return attended.reshape(len(hidden), 1, -1)

    def _turns(self, tokens: int) -> _Turns:
        """Cosines and sines (token, half a head's width) of positions behind what is cached."""
        half, device = self._shape.head_dim // 2, self._norm.device
        at = torch.arange(tokens, device=device) + self._length
        angle = at[:, None] * _BASE ** (-torch.arange(half, device=device) / half)
        return angle.cos().to(self._norm.dtype), angle.sin().to(self._norm.dtype)

    def _reduced(self, partial: torch.Tensor) -> torch.Tensor:
        if self._ranks > 1:
            dist.all_reduce(partial)
        return partial


def _turned(heads: torch.Tensor, turns: _Turns) -> torch.Tensor:
    """Rotary embeddings of (sequence, head, token, width)."""
    (cos, sin), (first, second) = turns, heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def token_s(decoder: Decoder, batch: int, context: int, tokens: int) -> float:
    """Seconds of a step, the median of so many of one sequence, fewer of more (`_calls`)."""
    decoder.fill(batch, context, tokens)
    last, times = torch.zeros(batch, dtype=torch.long), []
    for _ in range(_calls(tokens, batch)):
        start = time.perf_counter()
        last = decoder.step(last)
        times.append(time.perf_counter() - start)
    return median(times)


def _calls(alone: int, batch: int) -> int:
    """Instead of so many with one sequence: those of a larger batch take longer, and a repeat's
    differ less from each other than from those of another repeat."""
    return max(1, round(alone / math.sqrt(batch)))


@torch.inference_mode()
def attention_s(decoder: Decoder, memory: torch.Tensor, batch: int, context: int) -> float:
    """Seconds of one layer's attention to a cache in this `memory`; ranks meet behind it, as in a
    step, where they wait for the slowest."""
    shape, heads, ranks = decoder._shape, decoder._kv_heads, decoder._ranks
    size = 2 * batch * heads * context * shape.head_dim
    # A layer's cache is not there where the layer before has read its own.
    layers = max(1, min(shape.layers, len(memory) // size))
    caches = memory[: layers * size].view(layers, 2, batch, heads, context, shape.head_dim)
    queries = torch.ones_like(caches[0, 0, :, :, : shape.heads // shape.kv_heads])
    hidden = torch.zeros(batch, 1, shape.hidden, dtype=torch.bfloat16)
    times = []
    # Short as they are, the first one's share of finding caches as others left them is large.
    for _ in range(1 + _calls(_ATTENDED, batch)):
        if ranks > 1:
            dist.barrier()
        start = time.perf_counter()
        for cache in caches:
            functional.scaled_dot_product_attention(queries, *cache)
            decoder._reduced(hidden)
        times.append(time.perf_counter() - start)
    return median(times[1:]) / layers
