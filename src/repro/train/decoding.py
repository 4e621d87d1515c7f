"""Decoder with a cache of keys and values, which adds one token to each sequence per step.

Megatron-Core's inference engines need CUDA's memory and streams. On CPUs this decoder represents
them: the layers of `DecoderShape` in torch. The performance model of serving is judged on it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from repro.catalog.models.open_models import DecoderShape
from repro.catalog.studies.decoding import Weights
from repro.catalog.studies.gpu import GpuWeights
from repro.train.timed import cpu_s

# A matrix larger than a CPU's caches, and rows of matmuls that are bound by compute.
_MATRIX, _ROWS = (16384, 4096), 64
# Total time of the calls whose median is taken on a CPU.
_TOTAL_S = 1.0
_BASE = 10_000.0
# Different numbers in a matrix; a prime, so that rows differ too. Drawing all numbers would take
# longer than the measurement.
_DRAWN = 1_048_583
_EIGHTH = torch.float8_e4m3fn
_Turns = tuple[torch.Tensor, torch.Tensor]


class Linear:
    """Matmul with weights in bf16, int8 with a scale per row, or fp8 (E4M3) with one scale.

    With fp8, activations are cast without a scale, as with scales that are known beforehand. The
    constructor uses up its matrix.
    """

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

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, without scales."""
        return self._weight.nbytes

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:  # noqa: D102, the class describes it
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
    """Return the matmul of fp8 (E4M3) operands in bf16, as a linear layer multiplies."""
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
    """Return a matrix in bf16 that keeps the magnitude of its input."""
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
    """A model's layers and its caches.

    Parameters
    ----------
    shape
        Shape of the model, whose MLP is gated and dense.
    weights
        Precision of all matmuls. With fp8, the one with the vocabulary is in bf16, as in engines.
        Hidden states and caches are in bf16.
    device
        Device of the model: `cpu` or `cuda`.
    """

    def __init__(
        self,
        shape: DecoderShape,
        weights: Weights | GpuWeights,
        device: str = "cpu",
    ):
        generator = torch.Generator(device).manual_seed(0)
        self._shape = shape
        h, width = shape.hidden, shape.heads * shape.head_dim
        kept = shape.kv_heads * shape.head_dim

        def linear(outputs: int, inputs: int) -> Linear:
            return Linear(random_matrix(outputs, inputs, generator), weights)

        self._layers = [
            _Layer(
                linear(width + 2 * kept, h),
                linear(h, width),
                linear(2 * shape.ffn, h),
                linear(h, shape.ffn),
            )
            for _ in range(shape.layers)
        ]
        drawn = torch.randn(shape.vocab, h, generator=generator, device=device)
        self._embedding = drawn.to(torch.bfloat16)
        logits = random_matrix(shape.vocab, h, generator)
        self._logits = Linear(logits, "bf16" if weights == "fp8" else weights)
        self._norm = torch.ones(h, dtype=torch.bfloat16, device=device)
        self._memory = self._cache = torch.empty(0, dtype=torch.bfloat16, device=device)
        self._length = 0

    def fill(self, batch: int, context: int, room: int) -> None:
        """Take `batch` sequences of `context` cached tokens, with room for as many more."""
        size = (batch, self._shape.kv_heads, context + room, self._shape.head_dim)
        needed = self._shape.layers * 2 * math.prod(size)
        # Memory is mapped once, because that takes longer than the steps that are measured.
        if len(self._memory) < needed:
            # The old memory is freed first, because both may not fit a GPU.
            self._memory = self._cache = torch.empty_like(self._memory[:0])
            self._memory = torch.empty(needed, dtype=self._memory.dtype, device=self._memory.device)
        self._cache = self._memory[:needed].view(self._shape.layers, 2, *size)
        self._cache[..., :context, :] = 1 / self._shape.head_dim
        self._length = context

    def drawn_tokens(self, *size: int) -> torch.Tensor:
        """Draw random tokens; equal rows draw less power, and a GPU multiplies them faster."""
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(self._shape.vocab, size, generator=generator)
        return drawn.to(self._norm.device)

    def rewind(self, context: int) -> None:
        """Remove the cache entries after so many tokens."""
        self._length = context

    @torch.inference_mode()
    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the most probable next token of each sequence, given its last token."""
        return self._next(self._passed(tokens[:, None])[:, -1])

    @torch.inference_mode()
    def read(self, prompts: torch.Tensor) -> torch.Tensor:
        """Return the most probable next token of prompts (sequence, token); the cache is empty."""
        assert self._length == 0
        return self._next(self._passed(prompts)[:, -1])

    def _passed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return hidden states (sequence, token, hidden) of tokens that follow the cached ones."""
        hidden, turns = functional.embedding(tokens, self._embedding), self._turns(tokens.shape[1])
        for layer, cache in zip(self._layers, self._cache, strict=True):
            attended = self._attended(layer, cache, hidden, turns)
            hidden = hidden + layer.out(attended)
            gate, up = layer.up(self._normed(hidden)).chunk(2, dim=-1)
            hidden = hidden + layer.down(functional.silu(gate) * up)
        self._length += tokens.shape[1]
        return hidden

    def _next(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._logits(self._normed(hidden)).argmax(dim=-1)

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (self._shape.hidden,), self._norm)

    def _attended(
        self, layer: _Layer, cache: torch.Tensor, hidden: torch.Tensor, turns: _Turns
    ) -> torch.Tensor:
        d, at, new = self._shape.head_dim, self._length, hidden.shape[1]
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        projected = layer.qkv(self._normed(hidden)).view(*hidden.shape[:2], -1, d).transpose(1, 2)
        q, k, v = torch.split(projected, [heads, kv_heads, kv_heads], dim=1)
        q, k = _turned(q, turns), _turned(k, turns)
        keys, values = cache
        keys[:, :, at : at + new], values[:, :, at : at + new] = k, v
        if new > 1:
            attended = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=heads != kv_heads
            )
            return attended.transpose(1, 2).flatten(2)
        seen = slice(0, at + 1)
        # Queries that share keys are rows of one matmul, which reads the keys once.
        grouped = q.reshape(len(hidden), kv_heads, -1, d)
        attended = functional.scaled_dot_product_attention(
            grouped, keys[:, :, seen], values[:, :, seen]
        )
        return attended.reshape(len(hidden), 1, -1)

    def _turns(self, tokens: int) -> _Turns:
        """Return cosines and sines (token, half a head's width) of positions after the cache."""
        half, device = self._shape.head_dim // 2, self._norm.device
        at = torch.arange(tokens, device=device) + self._length
        angle = at[:, None] * _BASE ** (-torch.arange(half, device=device) / half)
        return angle.cos().to(self._norm.dtype), angle.sin().to(self._norm.dtype)


def _turned(heads: torch.Tensor, turns: _Turns) -> torch.Tensor:
    """Return rotary embeddings of (sequence, head, token, width)."""
    (cos, sin), (first, second) = turns, heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def token_s(decoder: Decoder, batch: int, context: int) -> float:
    """Return the CPU time of a step with so many cached tokens per sequence, in seconds."""
    decoder.fill(batch, context, room=1)
    tokens = decoder.drawn_tokens(batch)

    def step() -> None:
        decoder.rewind(context)
        decoder.step(tokens)

    return cpu_s(step, total_s=_TOTAL_S)


@torch.inference_mode()
def rates(weights: Weights) -> tuple[float, float]:
    """Return two rates of a linear layer on the CPU, whose weights its caches do not hold.

    Returns
    -------
    bytes_per_s, flops
        The rate of reading weights for one row, and of the matmuls of many rows.
    """
    outputs, inputs = _MATRIX
    linear = Linear(random_matrix(outputs, inputs, torch.Generator().manual_seed(0)), weights)
    one_s, many_s = (
        cpu_s(linear, torch.ones(rows, inputs, dtype=torch.bfloat16), total_s=_TOTAL_S)
        for rows in (1, _ROWS)
    )
    return linear.weight_bytes / one_s, 2 * _ROWS * outputs * inputs / many_s
