"""The page of designs: the best within a budget is that of the cube, and nothing is a line."""

import numpy as np
import pytest

from repro.errors import ReproError
from repro.explorer.designs import Budget, affordable, designs, fastest


def test_the_fastest_is_within_the_budget_and_none_other_is_faster() -> None:
    budget = Budget(nm=5, power_w=500, area_mm2=600)
    best = fastest(affordable(budget))
    assert best.power_w <= 500 and best.area_mm2 <= 600
    every = designs(5).sel(memory_gb=80, network_gbps=400)
    faster = every.where(every.iteration_time_s < best.iteration_time_s, drop=True)
    assert ((faster.power_w > 500) | (faster.area_mm2 > 600) | np.isnan(faster.bound)).all()


def test_a_larger_budget_or_a_later_node_is_never_slower() -> None:
    times = [
        float(fastest(affordable(Budget(nm=nm, power_w=power))).iteration_time_s)
        for nm, power in ((7, 300), (7, 700), (3, 700))
    ]
    assert times[0] > times[1] > times[2]


def test_what_nothing_affords_is_a_line_that_says_what_would() -> None:
    message = (
        "no design with 80 GB in 12 nm is within 100 W and 50 mm2; lowest power 152 W, smallest "
        "area 339 mm2; fix: raise power or area, or reduce memory"
    )
    with pytest.raises(ReproError, match=message):
        affordable(Budget(nm=12, power_w=100, area_mm2=50))
