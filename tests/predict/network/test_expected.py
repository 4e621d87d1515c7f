"""Expected bus bandwidths against the links' theory, and verdicts on values of known cause."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from repro.catalog.studies.collectives import COLLECTIVES
from repro.catalog.systems.clusters import cluster, read_clusters
from repro.catalog.systems.protocols import protocol
from repro.cli import app
from repro.cli.judging import parse_size
from repro.collectives.definitions import bus_factor
from repro.errors import ReproError
from repro.paths import PUBLISHED
from repro.predict.network.expected import (
    AS_EXPECTED,
    FAST,
    SLOW,
    expected_busbw,
    judge_busbw,
)
from repro.predict.network.limits import group_on, limits
from repro.predict.network.links import cost_priors, steps
from repro.predict.tables.reading import read_rows

_SIZES = np.geomspace(1e3, 1e11, 17)
_BIG_RED = PUBLISHED / "nccl_bigred200.csv"


def measured(busbw_GBps: list[float], ranks: int, size: float = 2.0**28, **columns: object):
    """All-reduces with these bus bandwidths, as a log says them."""
    time_us = 2 * (ranks - 1) / ranks * size / np.array(busbw_GBps) * 1e-3
    given = {"collective": "all_reduce", "nodes": None} | columns
    return pd.DataFrame({"size_bytes": size, "ranks": ranks, "time_us": time_us, **given})


@pytest.mark.parametrize("name", list(read_clusters()))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_is_expected_above_the_limiting_links_nominal_rate(
    name: str, collective: str
) -> None:
    topology = cluster(name).topology
    for ranks in {2, topology.gpus_per_node, 2 * topology.gpus_per_node, topology.gpus}:
        found = expected_busbw(name, collective, _SIZES, ranks)
        assert (found.low_GBps < found.typical_GBps).all()
        assert (found.typical_GBps < found.high_GBps).all()
        assert (found.high_GBps <= found.ceiling_GBps).all()
        # Larger messages get more, up to a share of the nominal rate that is not small.
        assert (np.diff(found.typical_GBps) > 0).all()
        assert found.typical_GBps.iloc[-1] > 0.4 * found.ceiling_GBps.iloc[-1]


def test_large_messages_get_a_protocols_rate_and_small_ones_its_latency() -> None:
    for name in ("rdma", "ipoib", "tcp"):
        found = expected_busbw("pinnacles", "all_reduce", [1.0, 1e13], 8, name)
        chosen = protocol(name)
        assert found.typical_GBps.iloc[1] == pytest.approx(chosen.effective_gbps / 8, rel=1e-3)
        costs = cost_priors(4)
        hop_s = max(costs["hop_s"].median, chosen.latency_us * 1e-6)
        time = costs["launch_s"].median + steps("all_reduce", 8) * hop_s
        assert found.typical_GBps.iloc[0] == pytest.approx(1.75e-9 / time, rel=1e-3)


def test_regimes_follow_one_another_and_only_the_transfer_is_a_links() -> None:
    found = expected_busbw("dgx-a100", "all_reduce", _SIZES, 8)
    assert list(found.regime.unique()) == ["latency", "start-up", "transfer"]
    assert found.limit.iloc[0] == "latency-bound"
    assert found.limit.iloc[-1] == "node: 2400 Gbit/s per GPU"
    between = expected_busbw("dgx-a100", "all_reduce", 1e11, 16)
    assert between.limit.tolist() == ["fabric: 1600 Gbit/s per node"]


def test_the_lowest_level_that_is_crossed_limits() -> None:
    """Frontier: 1600 Gbit/s in a package, 800 a package in a node, 800 a node."""
    for ranks, ceiling in ((2, 200.0), (8, 100.0), (16, 100.0)):
        found = expected_busbw("frontier", "all_gather", 1e11, ranks)
        assert found.ceiling_GBps.tolist() == [ceiling]


def test_ranks_spread_over_more_nodes_cross_the_fabric() -> None:
    inside = expected_busbw("dgx-a100", "all_reduce", 1e11, 8)
    spread = expected_busbw("dgx-a100", "all_reduce", 1e11, 8, nodes=2)
    assert (inside.nodes.item(), spread.nodes.item()) == (1, 2)
    # Four GPUs of a node use four NICs of 25 GB/s, which a tree over two nodes crosses once.
    assert (inside.ceiling_GBps.item(), spread.ceiling_GBps.item()) == (300.0, 4 * 25 * 7 / 4)


def test_an_all_to_all_shares_a_nodes_nics() -> None:
    """Eight ranks a node send the other node's half of their sixteenths: 8 x 8/16 of the size."""
    found = expected_busbw("dgx-a100", "all_to_all", 1e13, 16)
    seconds = 8 * 8 / 16 * 1e13 / 200e9
    assert found.ceiling_GBps.item() == pytest.approx(15 / 16 * 1e13 / seconds * 1e-9)
    assert found.typical_GBps.item() == pytest.approx(0.7 * found.ceiling_GBps.item(), rel=1e-3)


def test_no_algorithm_sends_less_than_the_least() -> None:
    """Of S bytes, a node of four of eight ranks has to send S, S/2 and S/2."""
    entry = cluster("big-red-200")
    for name, least in {"all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}.items():
        fabric = limits(group_on(entry, name, 8))[-1]
        assert fabric.most_GBps == pytest.approx(12.5 * float(bus_factor(name, 8)) / least)
        assert fabric.ring_GBps == 12.5


def test_the_interval_of_a_measured_network_contains_90_percent_of_its_rows() -> None:
    judged = judge_busbw(read_rows(_BIG_RED), "big-red-200")
    assert len(judged) == 24
    assert (judged.verdict == AS_EXPECTED).mean() >= 0.9
    # It says more than links' rates alone do.
    (large,) = judged[judged.nodes == 2].tail(1).itertuples()
    assert large.high_GBps / large.low_GBps < 1.4
    assert "Slingshot-10" in large.basis
    # The two that the table's own flags call dips.
    slow = judged[judged.verdict == SLOW]
    assert set(slow.size_bytes) <= {2.0**25, 2.0**26}
    assert not (judged.verdict == FAST).any()


@pytest.mark.parametrize("name", ["tcp", "ipoib"])
def test_the_rate_of_another_protocol_is_slow_and_named(name: str) -> None:
    other = protocol(name)
    log = measured([other.effective_gbps / 8], ranks=8)
    (row,) = judge_busbw(log, "pinnacles", "rdma").itertuples()
    assert row.verdict == SLOW
    assert other.label in row.remark
    assert row.limit == "fabric: 100 Gbit/s per node"
    assert judge_busbw(log, "pinnacles", name).verdict.tolist() == [AS_EXPECTED]


def test_a_ring_out_of_order_shares_the_nics_and_is_named() -> None:
    """Where each of four ranks of a node sends to another node, a quarter of the rate is left."""
    (row,) = judge_busbw(measured([0.85 * 12.5 / 4], ranks=8), "big-red-200").itertuples()
    assert row.verdict == SLOW
    assert "every hop" in row.remark


def test_a_rate_that_nothing_explains_is_slow_only() -> None:
    (row,) = judge_busbw(measured([0.01], ranks=8), "pinnacles", "rdma").itertuples()
    assert row.verdict == SLOW
    assert "agrees with no other" in row.remark


def test_what_no_link_can_carry_is_impossible() -> None:
    fabric_GBps = 12.5
    # Between a ring's rate and the 7/4 of it that an exchange of sums between two nodes would have.
    log = measured([1.2 * fabric_GBps, 2 * fabric_GBps], ranks=8)
    over, beyond = judge_busbw(log, "big-red-200").itertuples()
    assert (over.verdict, beyond.verdict) == (FAST, FAST)
    assert "more than a ring" in over.remark and "impossible" not in over.remark
    assert beyond.remark.startswith("impossible")


def test_a_faster_protocols_rate_is_fast_and_named() -> None:
    (row,) = judge_busbw(measured([81.9 / 8], ranks=8), "pinnacles", "tcp").itertuples()
    assert row.verdict == FAST
    assert "RDMA between nodes" in row.remark


def test_verdicts_keep_the_order_and_index_of_mixed_rows() -> None:
    rows = pd.concat([measured([10.0, 1.2], ranks=8), measured([20.0], ranks=2)])
    rows.index = pd.Index([5, 3, 5])
    judged = judge_busbw(rows.iloc[[2, 0, 1]], "pinnacles", "rdma")
    assert judged.index.tolist() == [5, 5, 3]
    assert judged.ranks.tolist() == [2, 8, 8]
    assert judged.verdict.tolist() == [AS_EXPECTED, AS_EXPECTED, SLOW]
    assert judged.busbw_GBps.tolist() == pytest.approx([20.0, 10.0, 1.2])


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 2**26), ("1g", 2**30), ("100 MB", 1e8), ("4096", 4096), ("1.5KiB", 1536)],
)
def test_sizes_as_people_write_them(text: str, size: float) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nowhere",), "unknown cluster 'nowhere'; choose from: pinnacles, cluster-b"),
        (("pinnacles", "--ranks", "9", "--nodes", "4"), "9 ranks take 5 to 9 nodes"),
        (("pinnacles", "--ranks", "1"), "ranks 1: 1 rank exchanges nothing; fix: give 2 or more"),
        ((), "no cluster; fix: repro busbw CLUSTER [LOG], or --gpu GPU [LOG]"),
        (("pinnacles", "--nic", "8x400"), "describe a cluster of --gpu; fix: give --gpu"),
        (("--gpu", "h100", "pinnacles", "a.log"), "cluster pinnacles beside --gpu h100"),
        (("--gpu", "abacus"), "unknown GPU 'abacus'; choose from: a100-sxm-80gb"),
        (("--gpu", "h100", "--nic", "fast"), "nic 'fast'; fix: write the NICs of a node as 8x400"),
        (("pinnacles", "--size", "5parsec"), "size '5parsec': take a number of bytes"),
        (("pinnacles", "--size", "0"), "size '0': take a number of bytes"),
        (("pinnacles", "--protocol", "quic"), "choose from: rdma, ipoib, tcp"),
        (("big-red-200", "--protocol", "tcp"), "has no protocols; leave it out"),
        (("pinnacles", "--collective", "gather"), "unknown collective 'gather'; choose from"),
        (("pinnacles", "no-such.log"), "no-such.log: no such file"),
    ],
)
def test_bad_questions_are_one_line(arguments: tuple[str, ...], problem: str) -> None:
    result = CliRunner().invoke(app, ["busbw", *arguments])
    assert isinstance(result.exception, ReproError)
    assert problem in str(result.exception)
    assert "\n" not in str(result.exception)


def test_more_nodes_than_ranks_are_refused() -> None:
    with pytest.raises(ReproError, match="nodes 3: 2 ranks take 1 to 2 nodes"):
        expected_busbw("pinnacles", "all_reduce", 1e6, 2, nodes=3)


def test_the_command_prints_a_row_per_size() -> None:
    result = CliRunner().invoke(app, ["busbw", "big-red-200"])
    assert result.exit_code == 0
    head, columns, *rows = result.stdout.splitlines()
    assert head.startswith("all_reduce, 8 ranks on 2 nodes: ")
    assert "typical_GBps" in columns and "verdict" not in columns
    assert [row.split()[:2] for row in rows[:2]] == [["1", "KiB"], ["4", "KiB"]]
    assert rows[0].endswith("latency-bound")
    assert "fabric: 100 Gbit/s per node" in rows[-1]


def test_the_command_judges_a_log(tmp_path: Path) -> None:
    size, ranks = 2**28, 4
    tcp_us = 2 * (ranks - 1) / ranks * size / (protocol("tcp").effective_gbps / 8) * 1e-3
    lines = ["# nThread 1 nGpus 1", "# Using devices"]
    lines += [
        f"#  Rank {rank} Group 0 Pid 1 on node{rank // 2} device 0 [0x00]" for rank in range(ranks)
    ]
    lines += [
        "#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
        f"{size} {size // 4} float sum -1 {tcp_us:.1f} 0.8 1.2 0 {tcp_us / 8:.1f} 6.3 9.4 0",
    ]
    path = tmp_path / "all_reduce.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = CliRunner().invoke(
        app, ["busbw", "pinnacles", str(path), "--protocol", "rdma", "--collective", "all_reduce"]
    )
    assert result.exit_code == 0, result.exception
    head, _, slow, good, whole = result.stdout.splitlines()
    assert head.startswith("all_reduce, 4 ranks on 2 nodes: ")
    assert " slow " in slow and "TCP/IP" in slow
    assert AS_EXPECTED in good
    assert whole.startswith("peak: all_reduce of 4 ranks ")
    assert whole.endswith(f"verdict: {AS_EXPECTED}")
