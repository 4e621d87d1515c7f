"""Kernels take what their work takes at the rates that they are given."""

from dataclasses import replace

import numpy as np
import pytest

from repro.predict.operators.kernels import (
    AttentionCosts,
    CollectiveCosts,
    ProductCosts,
    Rates,
    attention_s,
    cast_s,
    decoding_s,
    multiplier,
    node_collective_s,
    product_s,
)

_RATES = Rates(flops=1e15, memory_bytes_per_s=2e12, multiprocessors=128, link_bytes_per_s=4e11)
_IDEAL = ProductCosts(
    efficiency=1.0,
    edge_loss=0.0,
    wave_loss=0.0,
    ramp_s=0.0,
    split_depth=512.0,
    memory_efficiency=1.0,
    launch_s=0.0,
)
_ATTENTION = AttentionCosts(
    efficiency=0.5, short_tokens=0.0, narrow_loss=0.5, memory_efficiency=1.0, launch_s=0.0
)


# So fast a memory that only computing takes time.
_COMPUTING = replace(_RATES, memory_bytes_per_s=1e18)


def _product(
    m: float,
    n: float,
    k: float,
    costs: ProductCosts = _IDEAL,
    batch: float = 1,
    rates: Rates = _COMPUTING,
) -> float:
    return float(product_s(*map(np.array, (m, n, k)), 2.0, multiplier(rates, costs), batch))


def test_a_large_product_takes_its_operations_at_the_peak() -> None:
    assert _product(4096, 8192, 262144) == pytest.approx(2**44 / 1e15)


def test_a_flat_product_takes_its_bytes_at_the_memorys_rate() -> None:
    moved = 2 * (64 * 16384 + 16384 * 16384 + 64 * 16384)
    seconds = _product(64, 16384, 16384, rates=_RATES)
    assert seconds == pytest.approx(moved / 2e12, rel=0.02)


def test_tiles_are_computed_whole() -> None:
    assert _product(4096 + 1, 8192, 65536) == pytest.approx(_product(4096 + 64, 8192, 65536))


def test_waves_that_are_not_full_cost_what_they_lose() -> None:
    # Small tiles lose so much at their edges that nobody takes them.
    large = _IDEAL.model_copy(update={"edge_loss": 10.0})
    whole = large.model_copy(update={"wave_loss": 1.0})
    # 128 large tiles are one wave, and half a wave more takes as long as another one.
    one, more = (_product(128 * rows, 256 * 16, 65536, whole) for rows in (8, 12))
    assert more / one == pytest.approx(2)
    assert _product(128 * 12, 256 * 16, 65536, large) / one == pytest.approx(1.5)


def test_few_tiles_are_split_along_k() -> None:
    alone = _IDEAL.model_copy(update={"split_depth": 1e9})
    assert _product(128, 256, 65536) < _product(128, 256, 65536, alone) / 8


def test_products_of_a_batch_fill_the_gpu_together() -> None:
    assert _product(128, 256, 65536, batch=256) == pytest.approx(2 * 128 * 256 * 65536 * 256 / 1e15)


def test_launching_and_casting_come_on_top() -> None:
    late = _IDEAL.model_copy(update={"launch_s": 3e-6, "cast_s": 1e-6})
    assert _product(64, 64, 64, late) - _product(64, 64, 64) == pytest.approx(3e-6)
    # Two reads in half precision and one byte written for each element.
    seconds = cast_s(np.array(1e4), np.array(1e4), 1.0, _RATES, late)
    assert float(seconds) == pytest.approx(5e8 / 2e12 + 1e-6)


def test_causal_attention_needs_half_of_all_scores() -> None:
    sizes = [np.array(float(one)) for one in (8, 32768, 32, 8, 128)]
    seconds = float(attention_s(*sizes, _RATES, _ATTENTION))  # type: ignore[arg-type]
    assert seconds == pytest.approx(4 * 8 * 32 * 32768**2 * 128 / 2 / 0.5e15, rel=1e-3)
    sizes[-1] = np.array(64.0)
    narrow = float(attention_s(*sizes, _RATES, _ATTENTION))  # type: ignore[arg-type]
    assert narrow / seconds == pytest.approx(1.5 / 2, rel=1e-3)


def test_decoding_reads_the_cache_once() -> None:
    sizes = [np.array(float(one)) for one in (64, 16384, 8, 128)]
    seconds = float(decoding_s(*sizes, 2.0, _RATES, _ATTENTION))  # type: ignore[arg-type]
    assert seconds == pytest.approx(2 * 2 * 64 * 16384 * 8 * 128 / 2e12)


def test_a_collective_is_latency_or_bandwidth() -> None:
    costs = CollectiveCosts(
        launch_s=1e-5, hop_s=1e-6, startup_s=0.0, startup_bytes=1.0, efficiency=0.8, few_loss=0.0
    )
    for size, wanted in ((0.0, 1e-5 + 14e-6), (1e12, 1e12 / 3.2e11)):
        seconds = node_collective_s(np.array(size), np.array(14.0), np.array(8.0), _RATES, costs)
        assert float(seconds) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("ranks", "parts"), [(2, 1.0), (4, 3 / 2), (8, 9 / 8), (72, 73 / 72)])
def test_switches_that_add_up_send_less_than_a_ring(ranks: int, parts: float) -> None:
    """(n + 1)/n of the buffer instead of 2 (n - 1)/n; among few ranks, who gain little or nothing,
    a ring is taken where switches reach less of the links."""
    costs = CollectiveCosts(
        launch_s=0.0,
        hop_s=0.0,
        startup_s=0.0,
        startup_bytes=1.0,
        efficiency=0.8,
        few_loss=0.0,
        switch_efficiency=0.6,
    )
    ring_bytes = np.array(2 * (ranks - 1) / ranks * 1e9)
    seconds = node_collective_s(ring_bytes, np.array(1.0), np.array(float(ranks)), _RATES, costs)
    efficiency = 0.8 if ranks < 8 else 0.6
    assert float(seconds) == pytest.approx(parts * 1e9 / (4e11 * efficiency))
