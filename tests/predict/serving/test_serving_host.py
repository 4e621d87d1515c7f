"""Tokens on CPUs from two numbers: reading weights, computing, and ranks that share them."""

import numpy as np
import pytest

from repro.catalog.models.open_models import open_model
from repro.claims.experiments.performance_paper import xeon_token_s
from repro.claims.quantities import Estimate, answers_by_claim
from repro.claims.verdicts import evaluate
from repro.predict.serving.host import Host, output_token_s

_SHAPE = open_model("llama2-7b").shape
_WEIGHTS = _SHAPE.count(0) - _SHAPE.vocab * _SHAPE.hidden


def test_one_sequence_waits_for_weights_and_many_for_products() -> None:
    host = Host(bytes_per_s=1e11, flops=1e12)
    found = output_token_s(_SHAPE, host, np.array([1, 1000]), 0, 2.0)
    assert found[0] == pytest.approx(2 * _WEIGHTS / 1e11, rel=0.001)
    assert found[1] == pytest.approx(2 * 1000 * _WEIGHTS / 1e12, rel=0.001)


def test_a_cache_adds_what_reading_it_takes() -> None:
    host = Host(bytes_per_s=1e11, flops=1e15)
    short, long = output_token_s(_SHAPE, host, 8, np.array([0, 4096]), 1.0)
    assert long - short == pytest.approx(2 * 2 * 32 * 4096 * 8 * 4096 / 1e11)


def test_ranks_share_weights_and_reduce_twice_a_layer() -> None:
    one, two = Host(1e11, 1e15), Host(1e11, 1e15, reduce_s=1e-4)
    alone = output_token_s(_SHAPE, one, 1, 0, 2.0)
    both = output_token_s(_SHAPE, two, 1, 0, 2.0, ranks=2)
    assert both == pytest.approx(alone / 2 + 2 * 32 * 1e-4)


def test_a_xeon_reads_no_faster_than_its_channels() -> None:
    least = 2 * 72.3e9 / 4 / (8 * 44.8e9)
    assert least < xeon_token_s(4, 2.0) < 1.5 * least
    estimate = answers_by_claim()["C160"]["predicted"]
    assert isinstance(estimate, Estimate)
    value, draws = evaluate(estimate)
    assert value == pytest.approx(1e3 * xeon_token_s(4, 2.0))
    assert draws.min() < value < draws.max()
