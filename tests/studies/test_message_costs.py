"""What messages cost on a curve of which latency and rate are known."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.errors import ReproError
from repro.studies.communication.message_costs import message_costs

_SIZES = np.array([8, 1 << 10, 1 << 14, 1 << 18, 1 << 22])
_LATENCY_S, _RATE = 1e-4, 1e9


def _sweep() -> xr.Dataset:
    """Over `slow`, latency is ten times as long."""
    scale = xr.DataArray([1.0, 10.0], dims="protocol", coords={"protocol": ["fast", "slow"]})
    size = xr.DataArray(_SIZES, dims="size_bytes", coords={"size_bytes": _SIZES})
    one = xr.DataArray(1.0, coords={"source": "testbed", "gpus": 8, "in_place": "out of place"})
    time_s = (scale * _LATENCY_S + size / _RATE) * one.expand_dims(["source", "gpus", "in_place"])
    layouts, collectives = ["world", "node"], ["all_reduce", "send_recv"]
    return xr.Dataset({"time_s": time_s.expand_dims(layout=layouts, collective=collectives)})


def test_small_calls_are_those_that_latency_makes_up() -> None:
    volumes = pd.DataFrame(
        [
            ("pipeline", "send", 1 << 10, 3.0),
            ("pipeline", "recv", 1 << 10, 3.0),
            ("pipeline", "send", 1 << 18, 1.0),
            ("data", "all_reduce", 1 << 24, 2.0),
        ],
        columns=["role", "operation", "bytes", "calls"],
    )
    costs = message_costs(volumes, _sweep()).set_index(["protocol", "role"])
    fast = costs.loc[("fast", "pipeline")]
    assert fast.calls == 4
    assert fast.small_calls == pytest.approx(3 / 4)
    assert fast.small_bytes == pytest.approx(3 * 1024 / (3 * 1024 + (1 << 18)))
    times = 3 * (_LATENCY_S + 1024 / _RATE) + _LATENCY_S + (1 << 18) / _RATE
    assert fast.time_s == pytest.approx(times)
    assert fast.latency_time == pytest.approx(4 * (_LATENCY_S + 8 / _RATE) / times)
    assert costs.loc[("slow", "pipeline")].small_calls == 1
    # Four times the largest size takes four times as long.
    largest_s = _LATENCY_S + (1 << 22) / _RATE
    assert costs.loc[("fast", "data")].time_s == pytest.approx(2 * 4 * largest_s)


def test_a_collective_that_the_sweep_lacks_is_named() -> None:
    columns = ["role", "operation", "bytes", "calls"]
    volumes = pd.DataFrame([("data", "reduce_scatter", 1 << 20, 1.0)], columns=columns)
    with pytest.raises(ReproError, match="calls of reduce_scatter have no costs, since the sweep"):
        message_costs(volumes, _sweep())
