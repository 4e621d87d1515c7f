"""Bandwidths of made-up sweeps whose times and bytes are known, and the tables of them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from repro.catalog.studies.collectives import COLLECTIVES, Layout
from repro.collectives.definitions import PLACES, bus_factor
from repro.collectives.records import CollectiveSweep, SweepRecord, Timing
from repro.collectives.traffic import received_bytes
from repro.observe.nic import NicSeries
from repro.observe.precision import CONFIDENCE
from repro.results.collectives import (
    bandwidth_table,
    bandwidths,
    bus_factors,
    layout_table,
    median_interval,
    median_ranks,
    sweep_dataset,
    wire_share,
    wire_table,
)
from repro.results.merging import merge
from repro.results.outcome import Outcome
from repro.results.schema import placed
from repro.testbed.verify import LinkCheck

_SIZES = (1000, 8_000_000)
_REPEATS = 6
_RATES = {"node": 1.0, "fabric": 0.5}
_SCALE = 0.01
_PER_NODE = 2
_OUT = "out of place"


def _placed(
    sweep: CollectiveSweep, outcome: Outcome, protocol: str = "rdma", gpus: int = 2
) -> xr.Dataset:
    where = {"source": "testbed", "protocol": protocol, "gpus": gpus}
    return placed(sweep_dataset(sweep, outcome), where)


def _seconds(size: int, repeat: int, rank: int) -> float:
    """Repeats in no order; the slowest rank is 1, which takes 2 us more than the others."""
    return 1e-8 * size + 1e-6 * (repeat * 5 % _REPEATS) + (2e-6 if rank == 1 else 0.0)


def _asked(collectives: tuple[str, ...] = COLLECTIVES) -> CollectiveSweep:
    return CollectiveSweep(
        collectives=collectives,
        sizes_bytes=_SIZES,
        layouts=("world", "node", "rail"),
        ranks_per_node=_PER_NODE,
        dtype="fp32",
        warmup=1,
        repeats=_REPEATS,
        most_repeats=_REPEATS,
        longest_call_s=1.0,
    )


def _group_ranks(gpus: int) -> dict[Layout, int]:
    return {"world": gpus, "node": _PER_NODE, "rail": gpus // _PER_NODE}


def _timing(layout: Layout, name: str, in_place: bool, size: int, rank: int, ranks: int) -> Timing:
    moved = 8 * (size // 8)
    received = received_bytes(name, moved, rank, ranks) if layout == "world" else math.nan
    return Timing(
        layout=layout,
        collective=name,
        in_place=in_place,
        requested_bytes=size,
        size_bytes=moved,
        calls=3,
        time_s=tuple(_seconds(size, repeat, rank) for repeat in range(_REPEATS)),
        sent_bytes=received,
        received_bytes=1.01 * received,
    )


def _swept(protocol: str, gpus: int, collectives: tuple[str, ...] = COLLECTIVES) -> xr.Dataset:
    """A sweep in which the large size of a reduction was not reached in place."""
    asked, groups = _asked(collectives), _group_ranks(gpus)
    records = tuple(
        SweepRecord(
            rank,
            groups,
            tuple(
                _timing(layout, name, place, size, rank, groups[layout])
                for layout in asked.layouts
                if groups[layout] > 1
                for name in collectives
                for place in PLACES[name]
                for size in asked.sizes_bytes
                if not (name == "reduce" and place and size == _SIZES[1])
            ),
        )
        for rank in reversed(range(gpus))
    )
    used = _RATES if gpus > _PER_NODE else {"node": _RATES["node"]}
    links = tuple(LinkCheck(level, rate, rate, (rate,)) for level, rate in used.items())
    nics = NicSeries()
    return _placed(asked, Outcome((), nics, links, 0.0, records), protocol, gpus)


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    parts = [_swept(name, gpus) for name in ("tcp", "rdma") for gpus in (8, 2)]
    return merge(parts).assign_attrs(rate_scale=_SCALE)


def _at(values: xr.DataArray, **where: object) -> float:
    chosen = {"protocol": "tcp", "gpus": 8, "layout": "world", "in_place": _OUT} | where
    return float(values.squeeze("source").sel(chosen))


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("size", _SIZES)
def test_bandwidths_follow_their_definitions(results: xr.Dataset, name: str, size: int) -> None:
    found = bandwidths(results)
    where = {"collective": name, "size_bytes": size}
    # The slowest rank of each repeat: 0 to 5 us over the least, in some order.
    slowest = [1e-8 * size + 2e-6 + 1e-6 * step for step in range(_REPEATS)]
    time = (slowest[2] + slowest[3]) / 2
    assert _at(found["time_s"], **where) == pytest.approx(time)
    assert _at(found["time_s_low"], **where) == pytest.approx(slowest[0])
    assert _at(found["time_s_high"], **where) == pytest.approx(slowest[-1])
    factors = {"all_reduce": 2 * 7 / 8, "broadcast": 1, "reduce": 1, "send_recv": 1}
    for end, seconds in {"": time, "_low": slowest[-1], "_high": slowest[0]}.items():
        algbw = 8 * (size // 8) / seconds / 1e9
        busbw = factors.get(name, 7 / 8) * algbw
        assert _at(found[f"algbw_GBps{end}"], **where) == pytest.approx(algbw)
        assert _at(found[f"busbw_GBps{end}"], **where) == pytest.approx(busbw)
        assert _at(found[f"full_scale_busbw_GBps{end}"], **where) == pytest.approx(busbw / _SCALE)


def test_a_size_that_ended_early_has_the_median_of_its_repeats() -> None:
    asked = replace(_asked(("broadcast",)), repeats=3)
    timings = [_timing("world", "broadcast", False, size, 0, 2) for size in _SIZES]
    early = replace(timings[0], time_s=timings[0].time_s[:3])
    records = (SweepRecord(0, _group_ranks(2), (early, timings[1])),)
    outcome = Outcome((), NicSeries(), (), 0.0, records)
    found = bandwidths(_placed(asked, outcome))["time_s"]
    found = found.squeeze(["source", "protocol", "gpus"])
    for size, count in zip(_SIZES, (3, _REPEATS), strict=True):
        known = [_seconds(size, repeat, 0) for repeat in range(count)]
        time = found.sel(collective="broadcast", in_place=_OUT, layout="world", size_bytes=size)
        assert float(time) == pytest.approx(np.median(known))


def test_groups_have_their_own_factor(results: xr.Dataset) -> None:
    found, factors = bandwidths(results), bus_factors(results).squeeze("source")
    large = {"collective": "all_reduce", "size_bytes": _SIZES[1]}
    for layout, ranks in _group_ranks(8).items():
        factor = 2 * (ranks - 1) / ranks
        own = factors.sel(protocol="tcp", gpus=8, layout=layout, collective="all_reduce")
        assert float(own) == pytest.approx(factor)
        ratio = _at(found["busbw_GBps"], layout=layout, **large) / _at(
            found["algbw_GBps"], layout=layout, **large
        )
        assert ratio == pytest.approx(factor)


def test_full_scale_is_the_measured_one_without_a_scale(results: xr.Dataset) -> None:
    unscaled = results.drop_attrs(deep=False)
    found = bandwidths(unscaled)
    xr.testing.assert_equal(
        found["full_scale_busbw_GBps"].rename("busbw_GBps"), found["busbw_GBps"]
    )


def test_what_was_not_measured_is_nan(results: xr.Dataset) -> None:
    found = bandwidths(results)
    for name in ("time_s", "algbw_GBps", "busbw_GBps", "busbw_GBps_low", "full_scale_busbw_GBps"):
        missing = {"collective": "reduce", "in_place": "in place", "size_bytes": _SIZES[1]}
        assert math.isnan(_at(found[name], **missing))
        assert not math.isnan(_at(found[name], **(missing | {"size_bytes": _SIZES[0]})))
        # Two GPUs are one on each rail, and an all-to-all has no place of its own.
        rail = {"collective": "all_reduce", "size_bytes": 1000, "layout": "rail"}
        assert math.isnan(_at(found[name], **rail, gpus=2))
        assert not math.isnan(_at(found[name], **rail))
        place = {"collective": "all_to_all", "size_bytes": 1000, "in_place": "in place"}
        assert math.isnan(_at(found[name], **place))


def test_datasets_with_bandwidths_stay_as_they_are(results: xr.Dataset) -> None:
    found = bandwidths(results)
    assert bandwidths(found) is found


def _coverage(samples: int, low: int, high: int) -> float:
    """The chance that the median lies between two of sorted samples, from 0: at least low + 1 and
    at most high of them are below it."""
    return sum(math.comb(samples, below) for below in range(low + 1, high + 1)) / 2**samples


@pytest.mark.parametrize(("samples", "ranks"), [(6, (0, 5)), (10, (1, 8)), (20, None), (100, None)])
def test_the_interval_of_the_median_is_the_narrowest_that_covers(
    samples: int, ranks: tuple[int, int] | None
) -> None:
    low, high = median_ranks(samples)
    assert low + high == samples - 1
    assert ranks is None or (low, high) == ranks
    assert _coverage(samples, low, high) >= CONFIDENCE
    assert _coverage(samples, low + 1, high - 1) < CONFIDENCE


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_of_too_few_repeats_it_is_the_whole_range(samples: int) -> None:
    assert median_ranks(samples) == (0, samples - 1)
    assert _coverage(samples, 0, samples - 1) < CONFIDENCE


def test_of_few_repeats_it_is_students_of_their_logarithms() -> None:
    samples = np.array([1.0, np.nan, 1.1, 1.21])
    # Logarithms are ln 1.1 apart, t(2) is 4.303.
    factor = 1.1 ** (4.303 / math.sqrt(3))
    assert median_interval(samples) == pytest.approx((1.1 / factor, 1.1 * factor), rel=1e-4)
    assert median_interval(np.array([2.0, 2.0, 2.0])) == (2.0, 2.0)
    assert np.isnan(median_interval(np.array([np.nan]))).all()


def test_the_interval_covers_medians_of_a_skewed_distribution() -> None:
    samples = np.sort(np.random.default_rng(5).exponential(size=(4000, 20)))
    low, high = median_ranks(20)
    covered = (samples[:, low] < math.log(2)) & (math.log(2) < samples[:, high])
    assert covered.mean() == pytest.approx(_coverage(20, low, high), abs=0.01)


def test_the_share_of_made_up_bytes_is_exact(results: xr.Dataset) -> None:
    share = wire_share(results).squeeze("source")
    assert share.notnull().all()
    np.testing.assert_allclose(share.values, 1.01, rtol=1e-12)
    in_place = wire_share(results, "in place").squeeze("source")
    assert in_place.sel(collective="send_recv").isnull().all()
    assert in_place.sel(collective="reduce", size_bytes=_SIZES[1]).isnull().all()
    assert in_place.sel(collective="reduce", size_bytes=_SIZES[0]).values == pytest.approx(1.01)


def test_received_bytes_are_those_of_the_algorithms() -> None:
    size, n = 800_000, 8
    for rank in range(n):
        assert received_bytes("all_reduce", size, rank, n) == 2 * 7 / 8 * size
        assert received_bytes("all_to_all", size, rank, n) == 7 / 8 * size
        assert received_bytes("broadcast", size, rank, n) == (size if rank else 0)
        assert received_bytes("reduce", size, rank, n) == (7 / 8 if rank else 2 * 7 / 8) * size
        assert received_bytes("send_recv", size, rank, n) == size


def test_of_a_large_reduction_gloo_sends_almost_everything_on() -> None:
    """Segments of 1 MiB, of which all but two are passed on, where n - 1 of n would do."""
    mib = 1 << 20
    # As counted on the loopback: 2.25 and 4.25 of 16 MiB, 2.47 of 64 MiB.
    for size, ranks, total in ((16, 2, 14 + 14 + 8), (16, 4, 4 * 14 + 12), (64, 2, 2 * 62 + 32)):
        found = [received_bytes("reduce", size * mib, rank, ranks) for rank in range(ranks)]
        assert sum(found) == total * mib
        assert found[0] - found[1] == size * mib * (ranks - 1) / ranks
    # At 2 n MiB there are two segments a rank, so that nothing is sent in vain.
    assert received_bytes("reduce", 8 * mib, 1, 4) == 6 * mib


def test_real_links_have_no_rate_to_compare_with() -> None:
    outcome = Outcome((), NicSeries(), (), 0.0, (SweepRecord(0, _group_ranks(2), ()),))
    assert bandwidth_table(_placed(_asked(), outcome)).empty


def test_bandwidths_in_percent_of_the_slowest_link(results: xr.Dataset) -> None:
    table = bandwidth_table(results)
    # Every collective out of place, and all but two in place.
    assert len(table) == sum(len(places) for places in PLACES.values())
    assert list(table.columns) == [("tcp", 2), ("tcp", 8), ("rdma", 2), ("rdma", 8)]
    time = 1e-8 * _SIZES[1] + 4.5e-6
    # Two GPUs share a node; eight cross the fabric, which is slower.
    for gpus, link_gbps in ((2, 1.0), (8, 0.5)):
        busbw = bus_factor("all_reduce", gpus) * _SIZES[1] / time
        assert table.loc[("all_reduce", _OUT), ("rdma", gpus)] == pytest.approx(
            100 * busbw / (link_gbps * 1e9 / 8), abs=0.05
        )
    # Of a reduction in place, the largest size that was measured.
    time = 1e-8 * _SIZES[0] + 4.5e-6
    assert table.loc[("reduce", "in place"), ("tcp", 8)] == pytest.approx(
        100 * _SIZES[0] / time / (0.5e9 / 8), abs=0.05
    )


def test_process_groups_stand_side_by_side(results: xr.Dataset) -> None:
    table = layout_table(results)
    assert list(table.index) == list(COLLECTIVES)
    assert list(table.columns) == [
        (name, layout) for name in ("tcp", "rdma") for layout in ("world", "node", "rail")
    ]
    time = 1e-8 * _SIZES[1] + 4.5e-6
    for layout, ranks in _group_ranks(8).items():
        busbw = bus_factor("all_gather", ranks) * _SIZES[1] / time / _SCALE * 1e-9
        assert table.loc["all_gather", ("tcp", layout)] == pytest.approx(busbw, abs=0.005)


def test_bytes_have_a_column_per_size(results: xr.Dataset) -> None:
    table = wire_table(results)
    assert list(table.columns) == list(_SIZES)
    assert set(table.index) == {(gpus, name) for name in COLLECTIVES for gpus in (2, 8)}
    assert (table == 1.01).all(axis=None)


@pytest.mark.parametrize("tabulate", [bandwidth_table, layout_table, wire_table])
def test_tables_of_nothing_are_empty(tabulate: object) -> None:
    table = tabulate(xr.Dataset())  # type: ignore[operator]
    assert isinstance(table, pd.DataFrame) and table.empty


def test_merged_sweeps_keep_their_orders(results: xr.Dataset) -> None:
    assert results["protocol"].values.tolist() == ["tcp", "rdma"]
    assert results["gpus"].values.tolist() == [2, 8]
    assert results["layout"].values.tolist() == ["world", "node", "rail"]
    assert results["collective"].values.tolist() == list(COLLECTIVES)
    assert results["in_place"].values.tolist() == ["out of place", "in place"]
    assert results["size_bytes"].values.tolist() == list(_SIZES)
    assert results["level"].values.tolist() == list(_RATES)
    times = results["call_time_s"].squeeze("source")
    assert times.sel(gpus=2, rank=slice(2, None)).isnull().all()
    for rank in range(8):
        found = times.sel(
            protocol="rdma",
            gpus=8,
            layout="world",
            collective="reduce",
            in_place=_OUT,
            size_bytes=1000,
            rank=rank,
        )
        assert found.values == pytest.approx([_seconds(1000, n, rank) for n in range(_REPEATS)])


def test_sweeps_of_other_collectives_are_joined_in_their_order() -> None:
    parts = [_swept("rdma", 8, ("send_recv", "reduce")), _swept("rdma", 8, ("all_gather",))]
    joined = merge(parts)
    assert joined["collective"].values.tolist() == ["send_recv", "reduce", "all_gather"]
    assert not bandwidths(joined)["busbw_GBps"].sel(layout="world", in_place=_OUT).isnull().any()
