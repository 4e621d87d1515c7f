"""Figures of serving show what they are given."""

import holoviews as hv
import pandas as pd
import pytest

from repro.catalog.systems.gpus import gpu
from repro.figures.predicted.serving import (
    latency_by_memory,
    latency_throughput,
    operator_shares,
    roofline,
)

_OPERATORS = pd.DataFrame(
    {
        "phase": ["prefill", "decode", "decode"],
        "operator": ["MLP up", "MLP up", "all-reduce"],
        "time_s": [0.1, 0.002, 0.001],
        "share_pct": [100.0, 67.0, 33.0],
        "intensity": [2000.0, 8.0, float("nan")],
        "rate": [6e14, 2e13, 0.0],
        "bound": ["compute", "memory", "launch"],
    }
)


@pytest.mark.slow
def test_the_roofs_meet_where_the_peaks_balance() -> None:
    device = gpu("h100-sxm-80gb")
    figure = roofline(_OPERATORS, device, "bf16")
    (curve,) = figure.traverse(lambda one: one, [hv.Curve])
    points = curve.dframe()
    assert points.rate.max() == pytest.approx(989.4)
    ridge = 989.4e12 / 3352e9
    below = points[points.intensity < ridge]
    assert (below.rate * 1e12 / below.intensity).to_numpy() == pytest.approx(3352e9)


@pytest.mark.slow
def test_every_operator_has_its_bar_in_its_bounds_colour() -> None:
    bars = operator_shares(_OPERATORS).dframe()
    shown = bars.dropna()
    assert len(shown) == 3 and set(shown.iloc[:, 1]) == {"compute", "memory", "launch"}


@pytest.mark.slow
def test_the_front_is_drawn_by_precision_and_memories_that_do_not_fit_have_a_star() -> None:
    plans = pd.DataFrame(
        {
            "precision": ["bf16", "fp8", "fp8"],
            **{"tp": 1, "pp": 1, "ep": 1, "batch": [1, 2, 4]},
            "output_token_s": [0.01, 0.008, 0.02],
            "tokens_per_s_per_gpu": [100.0, 200.0, 150.0],
            "best": [False, True, False],
        }
    )
    assert latency_throughput(plans, "a title") is not None
    memories = pd.DataFrame(
        {"memory": ["HBM3", "GDDR6"], "fits": [True, False], "output_token_s": [0.01, 0.05]}
    )
    names = latency_by_memory(memories, "a title").dframe().iloc[:, 0]
    assert list(names) == ["HBM3", "GDDR6 *"]
