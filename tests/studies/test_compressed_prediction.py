"""Compression at full scale: limits that are known, and arithmetic by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from repro.catalog.studies.compressed_training import read_compressed_training
from repro.catalog.systems.gpus import gpu
from repro.errors import ReproError
from repro.predict.network.collectives import Encodings
from repro.predict.step.iteration import predict_phases
from repro.studies.compression.predicted import (
    HYBRID,
    NAIVE,
    NONE,
    base_gain_pct,
    break_even_table,
    coding_by_hops,
    coding_rate_bytes_per_s,
    compressed,
    encoding,
    predict_compressed,
    ring_rates_gbytes_per_s,
    speed_up_map,
    sweep_gains,
)
from repro.studies.hierarchical_zero.predicted import faster_links

_STUDY = read_compressed_training()
_ONE = compressed()
_BASE = _STUDY.base


def test_the_base_plan_fits_and_the_published_micro_batch_does_not() -> None:
    assert _ONE.fits(_ONE.plans(_BASE)).all()
    four = _BASE.model_copy(update={"micro_batch_size": 4})
    assert not _ONE.fits(_ONE.plans(four)).any()


def test_free_coding_only_gains_and_naive_most() -> None:
    free = replace(_ONE, slower=0.0)
    w = free.plans(_BASE)
    naive, hybrid = (float(free.gain_pct(w, name, _BASE)[0]) for name in (NAIVE, HYBRID))
    assert 0 < hybrid < naive
    # No more than all that is communicated.
    plain = free.phases(w, NONE, _BASE)
    sent = plain.tensor_parallel + plain.forward_receive + plain.pipeline_bubble
    sent = sent + plain.gradient_sync + plain.parameter_all_gather + plain.straggler_wait
    assert naive < 100 * float((sent / (plain.iteration_time_s - sent))[0])


def test_equal_rates_make_both_schemes_one() -> None:
    same = _BASE.model_copy(update={"mild_bits": _BASE.aggressive_bits})
    w = _ONE.plans(same)
    assert _ONE.gain_pct(w, NAIVE, same) == _ONE.gain_pct(w, HYBRID, same)


def test_wider_values_take_twice_the_wire_and_as_long_to_encode() -> None:
    wide = _BASE.model_copy(update={"message_bits": 32})
    plain = _ONE.encodings(NONE, wide).tensor
    assert (plain.kept, plain.encode_s_per_byte) == (2.0, 0.0)
    assert _ONE.encodings(NAIVE, wide) == _ONE.encodings(NAIVE, _BASE)


def test_an_unknown_rate_is_one_line() -> None:
    odd = _BASE.model_copy(update={"aggressive_bits": 5})
    with pytest.raises(ReproError, match=r"unknown rate of cuZFP.*'5'; choose from: 4, 8"):
        _ONE.encodings(NAIVE, odd)


def test_another_gpu_goes_with_its_multiprocessors() -> None:
    v100, a100 = gpu("v100-sxm2-16gb"), gpu("a100-sxm-80gb")
    codec = _STUDY.codecs["cuzfp"]
    slow, fast = (coding_rate_bytes_per_s(encoding(codec, 16, one)) for one in (v100, a100))
    assert fast / slow == pytest.approx(a100.multiprocessors / v100.multiprocessors)
    # At 55 and 90 GB/s of fp32, one after the other: 34.1 GB/s of them, half as much of fp16.
    assert slow == pytest.approx(0.5e9 / (1 / 55 + 1 / 90))


def test_the_break_even_of_an_iteration_is_that_of_its_collective() -> None:
    """Gradients alone are encoded: bisect the rate between nodes at which that costs nothing."""
    codec = _STUDY.codecs[_STUDY.codec]
    own = encoding(codec, _BASE.aggressive_bits, _ONE.where.gpu)
    closed = 1e-9 * coding_rate_bytes_per_s(own) * (1 - own.kept)
    w = _ONE.plans(_BASE)

    def saved_s(logarithm: float) -> float:
        where = faster_links(_ONE.where, float(np.exp(logarithm)))
        plain = predict_phases(w, where, _ONE.parameters)
        encoded = predict_phases(w, where, _ONE.parameters, Encodings(gradients=own))
        return float((plain.iteration_time_s - encoded.iteration_time_s)[0])

    ratio = float(np.exp(brentq(saved_s, np.log(0.05), np.log(3.0))))
    rings = ring_rates_gbytes_per_s()
    # Between nodes a ring gets its part of the links' rate.
    assert ratio * rings["Lassen"] == pytest.approx(closed, rel=1e-3)


def test_slower_networks_gain_more() -> None:
    found = predict_compressed()
    assert (found.low <= found.gain_pct).all() and (found.gain_pct <= found.high).all()
    parts = found.drop(columns=["link", "scheme", "tflops_per_gpu", "gain_pct", "low", "high"])
    assert (parts >= -1e-12).all(axis=None)
    for scheme in (NAIVE, HYBRID):
        gains = found[found.scheme == scheme].set_index("link").gain_pct
        assert gains["Lassen"] < gains["RDMA"] < gains["IPoIB"] < gains["TCP/IP"]
    assert float(base_gain_pct(NAIVE)[0]) == found.gain_pct[1]


def test_sweeps_hold_what_fits_once_each() -> None:
    sweep = sweep_gains()
    settings = sweep.drop(columns=[NAIVE, HYBRID])
    assert not settings.duplicated().any()
    assert not ((sweep.tensor_parallel == 2) & (sweep.pipeline_parallel < 4)).any()
    assert (sweep.mild_bits < sweep.message_bits).all()
    assert np.isfinite(sweep[[NAIVE, HYBRID]]).all(axis=None)
    base = settings.eq(pd.Series(_BASE.model_dump())).all(axis=1)
    assert base.sum() == 1
    assert sweep[base][NAIVE].item() == pytest.approx(float(base_gain_pct(NAIVE)[0]))


def test_break_even_by_hand() -> None:
    table = break_even_table().set_index(["codec", "bits", "gpu"]).gbps
    # 8 of 16 bits: half is saved, at 38 and 61.5 GB/s of fp16.
    expected = 8 * 0.5 / (1 / 38 + 1 / 61.5)
    assert table["cuZFP, fixed rate", 8, "V100-SXM2-16GB"] == pytest.approx(expected)
    # 16 and 24 bits of 16 save nothing on any network.
    for bits in (16, 24):
        assert table["cuZFP, fixed rate", bits, "V100-SXM2-16GB"] == 0
    times = speed_up_map(0.5)
    above = times.where(times.coding > times.link / 0.5)
    assert float(above.min()) > 1
    assert float(times.where(times.coding < times.link / 0.5).max()) < 1


def test_two_ranks_encode_as_often_either_way() -> None:
    found = coding_by_hops((2, 24))
    assert found.loc[2].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert found.loc[24].tolist() == pytest.approx([23 / 12, 23 / 12, 1.0, 23 / 12])
