"""NCCL's log lines, in the forms of its versions since 2.4."""

import pytest

from repro.observe.nccl_log import Hca, NcclLog, Route, read_nccl_log

_SAMPLES = {
    # Rings, and an HCA without relaxed ordering.
    "2.4": (
        "node0:20:289 [0] NCCL INFO NET/Socket : Using [0]ib0:10.0.0.1<0>\n"
        "node0:20:289 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.0.0.1<0>\n"
        "NCCL version 2.4.7+cuda10.0\n"
        "node0:20:310 [0] NCCL INFO Ring 00 : 7 -> 0 [receive] via NET/IB/0\n"
        "node0:23:311 [3] NCCL INFO Ring 00 : 3 -> 4 [send] via NET/IB/0/GDRDMA\n",
        NcclLog(
            "2.4.7",
            (Hca("mlx5_0", 1, "InfiniBand"),),
            ("ib0",),
            (Route(7, 0, "IB", 0, False), Route(3, 4, "IB", 0, True)),
        ),
    ),
    # Channels with bus ids.
    "2.10": (
        "a:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:10.1.0.1<0>\n"
        "NCCL version 2.10.3+cuda11.4\n"
        "a:1:2 [0] NCCL INFO Using network Socket\n"
        "a:1:5 [0] NCCL INFO Channel 06 : 0[31000] -> 4[31000] [send] via NET/Socket/1\n"
        "a:1:5 [0] NCCL INFO Channel 06 : 1[32000] -> 0[31000] via P2P/IPC/read\n",
        NcclLog("2.10.3", (), ("eth0", "eth1"), (Route(0, 4, "Socket", 1, False),)),
    ),
    # Sub-channels, several ports, SHARP, the external plugin.
    "2.18": (
        "b:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; "
        "OOB ibp25s0:10.20.0.1<0>\n"
        "NCCL version 2.18.5+cuda12.2\n"
        "b:9:9 [0] NCCL INFO Using network IBext\n"
        "b:9:9 [0] NCCL INFO Channel 00/0 : 8[0] -> 1[1] [receive] via NET/IBext/1/GDRDMA\n",
        NcclLog(
            "2.18.5",
            (Hca("mlx5_0", 1, "InfiniBand"), Hca("mlx5_1", 1, "InfiniBand")),
            (),
            (Route(8, 1, "IBext", 1, True),),
        ),
    ),
    # RoCE, proxy ranks, shared buffers.
    "2.27": (
        "NCCL version 2.27.3+cuda12.9\n"
        "c:7:7 [3] NCCL INFO NET/IB : Using [0]mlx5_10:1/RoCE [1]mlx5_11:1/RoCE [RO]; "
        "OOB eth0:10.0.0.1<0>\n"
        "c:7:7 [3] NCCL INFO Initialized NET plugin IB\n"
        "c:7:7 [3] NCCL INFO Assigned NET plugin IB to comm\n"
        "c:7:7 [3] NCCL INFO Channel 02/0 : 3[3] -> 10[2] [send] via NET/IB/1(2)/GDRDMA/Shared\n",
        NcclLog(
            "2.27.3",
            (Hca("mlx5_10", 1, "Ethernet"), Hca("mlx5_11", 1, "Ethernet")),
            (),
            (Route(3, 10, "IB", 1, True),),
        ),
    ),
    # Of a real run: one rank, whose machine has libraries of InfiniBand and no adapter.
    "2.28": (
        "vm:609:609 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
        "vm:609:609 [0] NCCL INFO NET/IB : No device found.\n"
        "vm:609:609 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>\n"
        "vm:609:609 [0] NCCL INFO Failed to initialize NET plugin IB\n"
        "vm:609:609 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.2<0>\n"
        "vm:609:609 [0] NCCL INFO Initialized NET plugin Socket\n"
        "vm:609:609 [0] NCCL INFO Assigned NET plugin Socket to comm\n"
        "vm:609:609 [0] NCCL INFO Using network Socket\n",
        NcclLog("2.28.9", (), ("eth0",), ()),
    ),
}


@pytest.mark.parametrize("version", list(_SAMPLES))
def test_every_version_says_what_it_uses(version: str) -> None:
    text, expected = _SAMPLES[version]
    assert read_nccl_log(text) == expected


_A, _B, _C = (
    Hca("rocep130s0", 1, "Ethernet"),
    Hca("rocep130s0", 2, "Ethernet"),
    Hca("mlx5_2", 1, "Ethernet"),
)


@pytest.mark.parametrize(
    ("lines", "merged"),
    [
        # 2.21 and 2.23.
        (
            "NET/IB : Using [0]={[0] rocep130s0:1/RoCE, [1] rocep130s0:2/RoCE} [1]mlx5_2:1/RoCE "
            "[RO]; OOB eth0:10.0.0.1<0>\n",
            {0: (_A, _B), 1: (_C,)},
        ),
        # From 2.24 on.
        (
            "NET/IB : Made virtual device [0] name=rocep130s0 speed=100000 ndevs=1\n"
            "NET/IB : Using [0]rocep130s0:1/RoCE [1]rocep130s0:2/RoCE [2]mlx5_2:1/RoCE [RO]; "
            "OOB eth0:10.0.0.1<0>\n"
            "NET/IB : Made virtual device [3] name=rocep130s0+rocep130s0 speed=200000 ndevs=2\n",
            {0: (_A,), 1: (_B,), 2: (_C,), 3: (_A, _B)},
        ),
        ("NET/IB : Using [0]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n", {}),
    ],
)
def test_merged_ports_are_one_device(lines: str, merged: dict[int, tuple[Hca, ...]]) -> None:
    log = read_nccl_log("".join(f"a:1:2 [0] NCCL INFO {line}\n" for line in lines.splitlines()))
    assert log.hcas == ((_A, _B, _C) if merged else (_C,))
    assert log.merged == merged


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "2025-05-16T16:39:51.208-07:00 | "])
def test_a_route_that_is_overridden_names_what_carries_it(prefix: str) -> None:
    route = "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2\n"
    log = read_nccl_log(
        f"{prefix}a:1:2 [0] {route}"
        f"{prefix}a:1:3 [0] NCCL INFO NET/IB: Subnet-aware routing: overriding dev 2 with dev 0\n"
        f"{prefix}b:9:2 [0] {route}"
    )
    # Of the process that says so only.
    assert [found.device for found in log.routes] == [0, 2]


def test_an_adapter_that_was_not_found_is_none() -> None:
    # As 2.24 and later say it on nodes that have sockets only.
    log = read_nccl_log(
        "a:1:2 [0] NCCL INFO NET/IB : No device found.\n"
        "a:1:2 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>\n"
        "a:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    )
    assert (log.hcas, log.interfaces, log.merged) == ((), ("eth0",), {})


def test_a_plugin_with_a_space_in_its_name_and_a_log_without_a_network() -> None:
    line = "d:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/2/GDRDMA"
    assert read_nccl_log(line).routes == (Route(0, 8, "AWS Libfabric", 2, True),)
    others = ("OFI", "NCCL RDMA Plugin v10", "FasTrak")
    for name in others:
        (route,) = read_nccl_log(line.replace("AWS Libfabric", name)).routes
        assert (route.network, route.device) == (name, 2)
    assert read_nccl_log("nothing of NCCL") == NcclLog("", (), (), ())
