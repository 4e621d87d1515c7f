"""Kernels against the roofline, and against tiles and waves counted by hand."""

import numpy as np
import pytest
from examples import CALIBRATED, IDEAL
from hypothesis import given
from hypothesis import strategies as st

from repro.catalog.systems.gpus import gpu
from repro.predict.operators.kernels import Kernels
from repro.predict.workload import Array

_A100 = gpu("a100-sxm-80gb")
_INSTANT_MEMORY = _A100.model_copy(update={"memory_gbytes_per_s": np.inf})
_SIZE = st.integers(1, 20_000)


def _array(value: int) -> Array:
    return np.array(float(value))


def test_whole_tiles_take_their_flops() -> None:
    time = Kernels(_A100, IDEAL).gemm_s(_array(4096), _array(5120), _array(2048))
    assert time == pytest.approx(2 * 4096 * 5120 * 2048 / 312e12, rel=1e-12)


def test_a_thin_product_takes_its_traffic() -> None:
    # One row: 4096 x 4096 weights are read for two operations each.
    time = Kernels(_A100, IDEAL).gemm_s(_array(1), _array(4096), _array(4096))
    assert time == pytest.approx(2 * (4096 * 4096 + 2 * 4096) / 2039e9, rel=1e-12)


def test_products_start_and_end() -> None:
    slow = IDEAL.model_copy(update={"kernel_s": 1e-5})
    sizes = _array(512), _array(512), _array(512)
    more = Kernels(_A100, slow).gemm_s(*sizes) - Kernels(_A100, IDEAL).gemm_s(*sizes)
    assert more == pytest.approx(1e-5)


def test_parts_of_tiles_cost_whole_ones() -> None:
    kernels = Kernels(_INSTANT_MEMORY, IDEAL)
    whole = kernels.gemm_s(_array(256), _array(256), _array(128))
    assert kernels.gemm_s(_array(129), _array(129), _array(65)) == whole


def test_narrow_products_have_tiles_of_half_the_width() -> None:
    kernels = Kernels(_INSTANT_MEMORY, IDEAL)
    one = _array(1)
    narrow = kernels.attention_gemm_s(_array(1024), _array(64), _array(1024), one)
    wide = kernels.attention_gemm_s(_array(1024), _array(128), _array(1024), one)
    assert wide == 2 * narrow


@pytest.mark.parametrize(("loss", "times"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_a_half_filled_wave(loss: float, times: float) -> None:
    # 54 tiles on 108 multiprocessors: half of them idle.
    kernels = Kernels(_INSTANT_MEMORY, IDEAL.model_copy(update={"wave_loss": loss}))
    flops = 2 * (54 * 128) * 128 * 1024
    time = kernels.gemm_s(_array(54 * 128), _array(128), _array(1024))
    assert time == pytest.approx(times * flops / 312e12, rel=1e-12)


@given(_SIZE, _SIZE, _SIZE, st.integers(1, 500))
def test_never_faster_than_the_data_sheet(m: int, n: int, k: int, batch: int) -> None:
    kernels = Kernels(_A100, CALIBRATED)
    sizes = _array(m), _array(n), _array(k)
    flops, traffic = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    assert kernels.gemm_s(*sizes) > max(flops / 312e12, traffic / 2039e9)
    several = kernels.attention_gemm_s(*sizes, _array(batch))
    assert several > batch * max(flops / 312e12, traffic / 2039e9)


@given(_SIZE, _SIZE, _SIZE, st.integers(1, 500), st.sampled_from([0, 1, 2, 3]))
def test_more_work_never_takes_less_time(m: int, n: int, k: int, batch: int, grown: int) -> None:
    kernels = Kernels(_A100, CALIBRATED)
    sizes = [_array(m), _array(n), _array(k), _array(batch)]
    before = kernels.attention_gemm_s(*sizes)
    sizes[grown] = sizes[grown] + 1
    assert kernels.attention_gemm_s(*sizes) >= before * (1 - 1e-12)


def test_traffic_takes_its_bytes() -> None:
    assert Kernels(_A100, IDEAL).traffic_s(_array(2039)) == pytest.approx(1e-9)
