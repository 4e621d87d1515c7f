"""Sweeps that nothing was run for here: what is predicted, and what was published."""

import math

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.catalog.studies.collectives import SweepSelection, select_sweep
from repro.collectives.definitions import bus_factor
from repro.errors import NotRunHere
from repro.paths import PUBLISHED
from repro.predict.explore.experiments.collective_sweeps import (
    judge_sweep,
    predict_sweep,
    published_sweep,
)
from repro.predict.network.expected import AS_EXPECTED, SLOW, expected_busbw
from repro.results.collectives import bandwidths

_TABLE = pd.read_csv(PUBLISHED / "nccl_bigred200.csv")
_COLUMNS = {8: "inter", 4: "intra"}
_WHERE = {"layout": "world", "in_place": "out of place"}


@pytest.fixture(scope="module")
def pinnacles() -> SweepSelection:
    return select_sweep("pinnacles", "predicted")


@pytest.fixture(scope="module")
def big_red() -> SweepSelection:
    return select_sweep("big-red-200", "paper")


@pytest.mark.parametrize("rate_scale", [1.0, 0.01])
def test_a_sweep_is_predicted_as_single_sizes_are(
    pinnacles: SweepSelection, rate_scale: float
) -> None:
    found = predict_sweep(pinnacles, rate_scale)
    assert found["protocol"].values.tolist() == ["rdma", "ipoib", "tcp"]
    assert found["gpus"].values.tolist() == list(pinnacles.gpus)
    assert found["collective"].values.tolist() == list(pinnacles.collectives)
    sizes = np.array(pinnacles.profile.sizes_bytes)
    assert found["size_bytes"].values.tolist() == sizes.tolist()
    for name, gpus, collective in (("rdma", 8, "all_reduce"), ("tcp", 2, "broadcast")):
        alone = expected_busbw("pinnacles", collective, sizes / rate_scale, gpus, name)
        chosen = found.sel(protocol=name, gpus=gpus, collective=collective, **_WHERE).squeeze()
        for end, column in {"": "typical", "_low": "low", "_high": "high"}.items():
            busbw = chosen[f"full_scale_busbw_GBps{end}"].values
            np.testing.assert_allclose(busbw, alone[f"{column}_GBps"])
            np.testing.assert_allclose(
                busbw, float(bus_factor(collective, gpus)) * chosen[f"algbw_GBps{end}"].values
            )


def test_predicted_bandwidths_grow_towards_the_links_rate(pinnacles: SweepSelection) -> None:
    found = predict_sweep(pinnacles)["full_scale_busbw_GBps"].sel(gpus=8, **_WHERE)
    assert (found.squeeze().diff("size_bytes") > 0).all()
    # 81.9, 20 and 9.41 Gbit/s.
    for name, gbps in {"rdma": 81.9, "ipoib": 20.0, "tcp": 9.41}.items():
        largest = found.sel(protocol=name, collective="all_reduce").isel(size_bytes=-1)
        assert 0.7 * gbps / 8 < float(largest.squeeze()) < gbps / 8


def test_times_and_bandwidths_of_a_prediction_belong_together(pinnacles: SweepSelection) -> None:
    found = predict_sweep(pinnacles)
    for end, other in {"": "", "_low": "_high", "_high": "_low"}.items():
        expected = found[f"algbw_GBps{end}"]
        by_time = found["size_bytes"] / found[f"time_s{other}"] * 1e-9
        np.testing.assert_allclose(by_time.transpose(*expected.dims), expected)
    assert (found["time_s_low"] < found["time_s"]).all()
    assert (found["time_s"] < found["time_s_high"]).all()
    assert bandwidths(found) is found


def test_what_was_published_is_in_the_dataset(big_red: SweepSelection) -> None:
    found = published_sweep(big_red)
    assert found.sizes == {
        "source": 1,
        "protocol": 1,
        "gpus": 2,
        "layout": 1,
        "collective": 1,
        "in_place": 1,
        "size_bytes": len(_TABLE),
    }
    assert found["source"].item() == "paper"
    assert found["size_bytes"].values.tolist() == _TABLE.size_bytes.tolist()
    for gpus, side in _COLUMNS.items():
        chosen = found.sel(gpus=gpus).squeeze()
        np.testing.assert_allclose(chosen["time_s"], 1e-6 * _TABLE[f"{side}_time_us"], rtol=1e-12)
        for end in ("", "_low", "_high"):
            # Two decimals of 7.47 are 0.07 %, but times have more: 0.043 % is the worst row.
            np.testing.assert_allclose(
                chosen[f"full_scale_busbw_GBps{end}"],
                _TABLE[f"{side}_busbw_GBps_reported"],
                rtol=5e-4,
            )


def test_of_other_clusters_nothing_was_published() -> None:
    with pytest.raises(NotRunHere, match=r"no table of collectives of Cluster A.* was published"):
        published_sweep(select_sweep("pinnacles", "paper"))


def test_the_published_table_is_as_expected_but_for_its_dips(big_red: SweepSelection) -> None:
    judged = judge_sweep(big_red, published_sweep(big_red)).set_index(["ranks", "size_bytes"])
    assert len(judged) == 2 * len(_TABLE)
    assert (judged.verdict == AS_EXPECTED).mean() > 0.9
    dips = _TABLE.size_bytes[_TABLE.flag.fillna("").str.contains("dip")]
    assert set(judged.index[judged.verdict == SLOW]) == {(8, size) for size in dips}
    assert set(judged.verdict) == {AS_EXPECTED, SLOW}


def test_a_slower_network_is_told(big_red: SweepSelection) -> None:
    published = published_sweep(big_red)
    halved = published.assign({name: 2 * published[name] for name in published if "time" in name})
    assert (judge_sweep(big_red, halved).verdict == SLOW).mean() > 0.9


@pytest.mark.parametrize("rate_scale", [1.0, 0.01])
def test_sizes_are_judged_at_full_scale(pinnacles: SweepSelection, rate_scale: float) -> None:
    """A testbed that is as fast as predicted is as expected, at whatever scale."""
    predicted = predict_sweep(pinnacles, rate_scale)
    sizes = predicted["size_bytes"] / rate_scale
    factors = [float(bus_factor(name, 8)) for name in pinnacles.collectives]
    factor = predicted["collective"].copy(data=factors).astype(float)
    times = (factor * sizes / predicted["full_scale_busbw_GBps"] * 1e-9).sel(gpus=[8])
    measured = predicted.sel(gpus=[8]).assign(time_s=times).assign_attrs(rate_scale=rate_scale)
    judged = judge_sweep(pinnacles, measured)
    assert len(judged) == 3 * 7 * len(pinnacles.profile.sizes_bytes)
    np.testing.assert_allclose(judged.busbw_GBps, judged.typical_GBps, rtol=1e-9)
    assert set(judged.protocol) == {"RDMA", "IPoIB", "TCP/IP"}
    assert math.isclose(judged.size_bytes.max(), max(pinnacles.profile.sizes_bytes) / rate_scale)


def test_nothing_is_judged_of_what_was_not_run(pinnacles: SweepSelection) -> None:
    assert judge_sweep(pinnacles, xr.Dataset()).empty


def test_protocols_that_a_node_lacks_and_those_without_a_rate_are_no_error() -> None:
    selection = select_sweep("pinnacles", "predicted", "all")
    measured = predict_sweep(selection, 1.0)
    factors = [float(bus_factor(name, 8)) for name in selection.collectives]
    factor = measured["collective"].copy(data=factors).astype(float)
    times = factor * measured["size_bytes"] / measured["full_scale_busbw_GBps"] * 1e-9
    part = measured.assign(time_s=times).sel(protocol=["rdma"], gpus=[8])
    assert set(judge_sweep(selection, part).protocol) == {"RDMA"}
    other = part.assign_coords(protocol=["roce"])
    assert set(judge_sweep(selection, other).protocol) == {"RoCE"}
