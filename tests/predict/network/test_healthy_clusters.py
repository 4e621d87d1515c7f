"""Verdicts on bandwidths of clusters whose state is known, and the error on clusters left out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from repro.catalog.described import described_cluster
from repro.cli import app
from repro.collectives.definitions import bus_factor
from repro.predict.network.expected import (
    AS_EXPECTED,
    SLOW,
    expected_busbw,
    judge_busbw,
    summary,
    whole_verdict,
)
from repro.predict.network.limits import group_on, lowest_limit

H100, A100 = ("h100", 8, "8x400"), ("a100-sxm-80gb", 8, "2x200")
# Description; collective, ranks, nodes, size; bus bandwidth in GB/s; source.
HEALTHY = {
    "1 node, NVLS": (H100, "all_reduce", 8, 1, 2**33, 480.0),  # NVIDIA/nccl-tests issue 309
    "2 nodes, NVLS tree": (H100, "all_reduce", 16, 2, 2**33, 470.0),  # the same
    "4 nodes, ring": (H100, "all_reduce", 32, 4, 2**33, 365.84),  # the same
    "2 nodes, ring": (H100, "all_reduce", 16, 2, 2**30, 390.0),  # NVIDIA/nccl issue 2409
    "1 GPU a node": (H100, "all_reduce", 2, 2, 2**30, 48.0),  # one NIC of 50 GB/s
    "1 GPU a node, sent": (H100, "send_recv", 2, 2, 2**30, 48.0),
    "1 GPU a node, tree": (("h100", 1, "4x400"), "all_reduce", 2, 2, 2**25, 41.52),  # issue 232
    "fewer NICs than GPUs": (A100, "all_reduce", 16, 2, 2**30, 53.95),  # NVIDIA/nccl issue 837
    "mesh, 2 nodes": (("mi300x", 8, "8x400"), "all_reduce", 16, 2, 2**34, 350.24),  # rccl-tests
    "mesh, 8 nodes": (("mi300x", 8, "8x400"), "all_reduce", 64, 8, 2**34, 350.84),  # log on MI325X
    "mesh, 1 node": (("mi300x", 8, "8x400"), "all_reduce", 8, 1, 2**34, 319.21),
    "EFA, 4 nodes": (
        ("a100-sxm-80gb", 8, "4x100"),
        "all_reduce",
        32,
        4,
        2**30,
        29.89,
    ),  # links.yaml
    "EFA, 2 nodes": (("a100-sxm-80gb", 8, "4x100"), "all_reduce", 16, 2, 2**30, 57.3),
    "A100, 1 node": (("a100-sxm-80gb", 8, "8x200"), "all_reduce", 8, 1, 2**30, 229.0),
}
FAULTS = {
    # NVIDIA/nccl issue 2409: RoCE without GPUDirect or with half of its NICs.
    "all_reduce": (H100, "all_reduce", 16, 2, 2**30, 216.5, ["half of the NICs"]),
    "all_gather": (H100, "all_gather", 16, 2, 2**28, 101.0, ["without GPUDirect", "half of"]),
    "all_to_all": (H100, "all_to_all", 16, 2, 2**28, 25.0, ["without GPUDirect", "half of"]),
    "send_recv": (H100, "send_recv", 16, 2, 2**28, 13.1, ["without GPUDirect"]),
    # NVIDIA/nccl issue 837: sockets after an update.
    "sockets": (A100, "all_reduce", 16, 2, 2**30, 7.07, ["TCP sockets"]),
    "one NIC": (H100, "all_reduce", 32, 4, 2**33, 45.0, ["one NIC of 8"]),
}


def log(collective: str, ranks: int, nodes: int, sizes: Sequence[int], busbw: Sequence[float]):
    """Return a log of these bus bandwidths."""
    size = np.array(sizes, dtype=float)
    time_us = float(bus_factor(collective, ranks)) * size / np.array(busbw) * 1e-3
    given = {"collective": collective, "ranks": ranks, "nodes": nodes}
    return pd.DataFrame({"size_bytes": size, "time_us": time_us, **given})


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_clusters_are_as_expected(name: str) -> None:
    description, collective, ranks, nodes, size, busbw = HEALTHY[name]
    cluster, _ = described_cluster(*description)
    (row,) = judge_busbw(log(collective, ranks, nodes, [size], [busbw]), cluster).itertuples()
    assert row.verdict == AS_EXPECTED, row
    # The interval says more than a factor of 2 either way.
    assert row.high_GBps / row.low_GBps < 4


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_slow_and_their_causes_named(name: str) -> None:
    description, collective, ranks, nodes, size, busbw, causes = FAULTS[name]
    cluster, _ = described_cluster(*description)
    judged = judge_busbw(log(collective, ranks, nodes, [size], [busbw]), cluster)
    assert judged.verdict.tolist() == [SLOW]
    for cause in causes:
        assert cause in judged.remark.item()
    assert "GB/s)" in judged.remark.item()
    assert whole_verdict(judged) == SLOW
    assert summary(judged).endswith("; verdict: slow")


def test_a_cluster_left_out_is_predicted_within_its_interval() -> None:
    """Predict each healthy peak with the median efficiency of all other clusters."""
    ratios = {}
    for name, (description, collective, ranks, nodes, _, busbw) in HEALTHY.items():
        group = group_on(described_cluster(*description)[0], collective, ranks, nodes)
        ratios.setdefault((*description, group.nodes > 1), []).append(
            busbw / lowest_limit(group).typical_GBps
        )
        assert busbw < lowest_limit(group).most_GBps * 1.001, name
    medians = {key: float(np.median(values)) for key, values in ratios.items()}
    errors = [
        abs(np.log(value / np.median([medians[other] for other in medians if other != key])))
        for key, values in ratios.items()
        for value in values
    ]
    assert np.mean(np.array(errors) < 0.36) >= 0.9
    assert 100 * np.expm1(np.mean(errors)) < 20


def test_hundreds_of_nodes_may_be_asked_for() -> None:
    cluster, notes = described_cluster("h100", None, None)
    assert notes == [
        "8 GPUs per node, as not given",
        "a NIC of 400 Gbit/s per GPU, of its maker's systems",
    ]
    found = expected_busbw(cluster, "AllReduce", 2**33, 1984)
    assert (found.nodes.item(), found.ceiling_GBps.item()) == (248, 400.0)
    assert expected_busbw("dgx-h100", "all-reduce", 2**33, 1984).nodes.item() == 248


def test_a_tree_over_two_nodes_crosses_the_nics_once() -> None:
    cluster, _ = described_cluster("a100-sxm-80gb", 8, "2x200")
    two, three = (expected_busbw(cluster, "all_reduce", 2**33, n).iloc[0] for n in (16, 24))
    # 2 x 400 Gbit/s is 50 GB/s; 15/8 of it is what an exchange of sums gives.
    assert (two.ceiling_GBps, three.ceiling_GBps) == (50 * 15 / 8, 50)


def test_gpus_use_no_more_than_their_nics_and_pcie() -> None:
    wide, _ = described_cluster("h100", 1, "8x400")
    found = expected_busbw(wide, "all_reduce", 2**33, 2).iloc[0]
    assert found.ceiling_GBps == 63  # PCIe Gen5 x16
    eight, _ = described_cluster("h100", 8, "8x400")
    spread = expected_busbw(eight, "all_gather", 2**33, 8, nodes=4).iloc[0]
    assert spread.ceiling_GBps == 2 * 50
    assert spread.limit.endswith("of which 2 GPUs can use 800")


def test_messages_in_flight_hide_their_latency() -> None:
    """Windows of 64 messages of 4 KiB over 100 Gbit/s reach more than one message at a time."""
    one = log("send_recv", 2, 2, [4096], [1.0]).assign(window=1)
    cluster, _ = described_cluster("a100-sxm-80gb", 8, "8x200")
    single = judge_busbw(one, cluster).typical_GBps.item()
    window = judge_busbw(one.assign(window=64), cluster).typical_GBps.item()
    transfer_us = 4096 / (0.85 * 25e3)
    latency_us = 4096 / (single * 1e3) - transfer_us
    assert window == pytest.approx(4096 / (latency_us / 64 + transfer_us) * 1e-3)


def test_small_sizes_are_latency_bound() -> None:
    cluster, _ = described_cluster(*H100)
    judged = judge_busbw(log("all_reduce", 16, 2, [1024], [1e-4]), cluster)
    assert judged.limit.item() == "latency-bound"
    assert "latency-bound, so links do not explain it" in judged.remark.item()


SAMPLES = Path(__file__).parents[2] / "logs" / "samples"


def test_the_command_takes_a_described_cluster_and_returns_3_below_the_interval() -> None:
    command = ["busbw", "--gpu", "mi300x", "--gpus-per-node", "8"]
    log = str(SAMPLES / "public_egrep.txt")
    healthy = CliRunner().invoke(app, [*command, "--nic", "8x400", log])
    assert healthy.exit_code == 0, healthy.exception
    last = healthy.stdout.splitlines()[-1]
    assert last.startswith("peak: all_reduce of 8 ranks 319 GB/s at 16 GiB (as expected, ")
    assert last.endswith("verdict: as expected")
    assert "24 measurements in 18 lines" in healthy.stderr
    sockets = CliRunner().invoke(
        app,
        ["busbw", "--gpu", "h200-sxm-141gb", "--nic", "8x400", str(SAMPLES / "public_sockets.txt")],
    )
    assert sockets.exit_code == 3
    assert "TCP sockets instead of RDMA" in sockets.stdout
    assert "8 GiB" in sockets.stdout


def test_nodes_are_assumed_aloud_or_given() -> None:
    command = ["busbw", "--gpu", "h100", "--gpus-per-node", "8", "--nic", "8x400"]
    log = str(SAMPLES / "public_tree.txt")
    assumed = CliRunner().invoke(app, [*command, log])
    assert "all_reduce, 2 ranks on 1 node:" in assumed.stdout
    assert "assumed: ranks fill nodes of 8 GPUs, as the log lists no hosts" in assumed.stderr
    given = CliRunner().invoke(app, [*command, log, "--nodes", "2"])
    assert given.exit_code == 0
    assert "all_reduce, 2 ranks on 2 nodes:" in given.stdout
    assert "assumed: ranks" not in given.stderr
    listed = str(SAMPLES / "public_gb10.txt")
    refused = CliRunner().invoke(app, [*command, listed, "--nodes", "3"])
    assert "lists 2 nodes, not --nodes 3; fix: omit --nodes" in str(refused.exception)
