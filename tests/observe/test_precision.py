"""The interval of a mean, against tables and its coverage."""

import math

import numpy as np
import pytest

from repro.observe.precision import CONFIDENCE, half_width


# Student's t at 97.5 %, from any table.
@pytest.mark.parametrize(("count", "quantile"), [(2, 12.706), (3, 4.303), (6, 2.571), (31, 2.042)])
def test_it_is_students(count: int, quantile: float) -> None:
    values = np.linspace(1.0, 2.0, count)
    expected = quantile * np.std(values, ddof=1) / math.sqrt(count)
    assert half_width(values.tolist()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_of_too_few_it_is_infinite(values: list[float]) -> None:
    assert half_width(values) == math.inf


def test_it_covers_the_mean_as_often_as_it_says() -> None:
    samples = np.random.default_rng(7).normal(3.0, 0.5, size=(4000, 3))
    covered = [abs(np.mean(row) - 3.0) <= half_width(row.tolist()) for row in samples]
    assert np.mean(covered) == pytest.approx(CONFIDENCE, abs=0.01)
