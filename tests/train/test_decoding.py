"""The decoder: its cache gives what computing everything anew does."""

import pytest
import torch
from torch.nn import functional

from repro.catalog.models.open_models import DecoderShape
from repro.train.decoding import Decoder, Linear, random_matrix, token_s

_SHAPE = DecoderShape(
    layers=2, hidden=64, ffn=128, heads=4, kv_heads=2, head_dim=16, gated_mlp=True, seq=64, vocab=96
)


def _written(decoder: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    decoder.fill(tokens.shape[1], 0, len(tokens))
    return torch.stack([decoder.step(token) for token in tokens])


def test_a_sequence_does_not_depend_on_the_batch() -> None:
    tokens = torch.randint(96, (6, 3), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(_SHAPE, "bf16")
    together = _written(decoder, tokens)
    for one in range(3):
        assert torch.equal(_written(decoder, tokens[:, one : one + 1])[:, 0], together[:, one])


def test_the_past_decides_what_is_written() -> None:
    """With the same last token, other tokens before it give another one."""
    decoder = Decoder(_SHAPE, "bf16")
    starts = torch.arange(96)
    tokens = torch.stack([starts, torch.zeros_like(starts), torch.ones_like(starts)])
    assert len(_written(decoder, tokens)[-1].unique()) > 1


def test_a_prompt_is_read_as_it_would_be_written() -> None:
    tokens = torch.randint(96, (6, 3), generator=torch.Generator().manual_seed(0))
    decoder = Decoder(_SHAPE, "bf16")
    _in_fp32(decoder)
    written = _written(decoder, tokens)
    cached = decoder._cache.clone()
    decoder.fill(3, 0, 6)
    assert torch.equal(decoder.read(tokens.T), written[-1])
    torch.testing.assert_close(decoder._cache, cached)


def _in_fp32(decoder: Decoder) -> None:
    """So that what is most probable does not depend on rounding."""
    for layer in decoder._layers:
        for linear in (layer.qkv, layer.out, layer.up, layer.down):
            linear._weight = linear._weight.float()
    decoder._logits._weight = decoder._logits._weight.float()
    decoder._embedding, decoder._norm = decoder._embedding.float(), decoder._norm.float()
    decoder._memory = decoder._memory.float()


def _anew(decoder: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """The most probable next token behind each of a sequence, all of it computed at once (Touvron
    et al., Llama 2, 2023): rotary positions, causal attention in groups, a gated MLP."""
    heads, kv_heads, d = _SHAPE.heads, _SHAPE.kv_heads, _SHAPE.head_dim
    turns = 10_000.0 ** (-torch.arange(d // 2) / (d // 2))
    angle = torch.arange(len(tokens))[:, None, None] * turns

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()

    def turned(x: torch.Tensor) -> torch.Tensor:
        one, other = x[..., : d // 2], x[..., d // 2 :]
        turned = (one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin())
        return torch.cat(turned, -1)

    x = decoder._embedding[tokens]
    later = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for layer in decoder._layers:
        qkv = (norm(x) @ layer.qkv._weight.T).view(len(tokens), -1, d)
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
        k, v = (one.repeat_interleave(heads // kv_heads, dim=1) for one in (turned(k), v))
        scores = torch.einsum("qhd,khd->hqk", turned(q), k) / d**0.5
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        x = x + torch.einsum("hqk,khd->qhd", weights, v).flatten(1) @ layer.out._weight.T
        gate, up = (norm(x) @ layer.up._weight.T).chunk(2, dim=-1)
        x = x + (gate * gate.sigmoid() * up) @ layer.down._weight.T
    return (norm(x) @ decoder._logits._weight.T).argmax(-1)


_TOKENS = torch.randint(96, (12, 3), generator=torch.Generator().manual_seed(3))


def test_its_cache_gives_what_computing_everything_anew_does() -> None:
    decoder = Decoder(_SHAPE, "bf16")
    _in_fp32(decoder)
    written = _written(decoder, _TOKENS)
    for one in range(3):
        assert torch.equal(written[:, one], _anew(decoder, _TOKENS[:, one]))


def test_int8_weights_are_within_their_rounding() -> None:
    full = random_matrix(32, 64, torch.Generator().manual_seed(0))
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    exact = functional.linear(rows.float(), full.float())
    found = Linear(full.clone(), "int8")(rows).float()
    # Half a step of 1/127 of the largest weight, of 64 products of random sign.
    step = float(full.abs().max()) / 127
    assert float((found - exact).abs().mean()) < step * 64**0.5
    assert float((found - exact).abs().max()) > 0


def test_fp8_products_are_within_their_rounding() -> None:
    full = random_matrix(32, 64, torch.Generator().manual_seed(0))
    rows = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    exact = functional.linear(rows.float(), full.float())
    found = Linear(full.clone(), "fp8")
    assert found._weight.nbytes == full.numel()
    # Three bits of a mantissa: a sixteenth at most of each factor of 64 products of random sign.
    most = 2 / 16 * float(rows.float().std() * full.float().std()) * 64**0.5
    missed = (found(rows).float() - exact).abs()
    assert 0 < float(missed.mean()) < most and found(rows).shape == exact.shape


def test_a_decoder_in_fp8_has_its_logits_in_bf16() -> None:
    decoder = Decoder(_SHAPE, "fp8")
    assert decoder._layers[0].up._weight.dtype == torch.float8_e4m3fn
    assert decoder._logits._weight.dtype == torch.bfloat16
    assert token_s(decoder, batch=2, context=8) > 0


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_a_token_takes_time(weights: str) -> None:
    decoder = Decoder(_SHAPE, weights)  # type: ignore[arg-type]
    assert token_s(decoder, batch=2, context=8) > 0
