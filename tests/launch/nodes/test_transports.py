"""Protocols on real nodes: what NCCL is told, and when its log proves that it did as told."""

from dataclasses import replace

import pytest

from repro.catalog.systems.protocols import read_protocols, read_transports, transport
from repro.errors import ProtocolMissing, ReproError
from repro.launch.nodes.transports import (
    choose_adapters,
    gloo_environment,
    nccl_environment,
    prove_bytes,
    prove_routes,
)
from repro.observe.adapters import Interface, Port
from repro.observe.nccl_log import Hca, NcclLog, Route

_PORTS = [
    Port("mlx5_0", 1, "InfiniBand", True, 100.0),
    Port("mlx5_1", 1, "InfiniBand", False, 100.0),
    Port("mlx5_2", 1, "Ethernet", True, 25.0),
]
_INTERFACES = [
    Interface("docker0", "ethernet", True, False, None),
    Interface("eth0", "ethernet", True, True, 10.0),
    Interface("eth1", "ethernet", True, True, 10.0),
    Interface("ib0", "infiniband", True, True, 100.0),
]
_KINDS = {one.name: one.kind for one in _INTERFACES}
_ROUTE = Route(0, 2, "IB", 0, True)
_VERBS = NcclLog("2.27.3", (Hca("mlx5_0", 1, "InfiniBand"),), (), (_ROUTE,))
_SOCKETS = NcclLog("2.27.3", (), ("eth0",), (Route(0, 2, "Socket", 0, False),))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rdma", {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "=mlx5_0:1", "NCCL_NET_GDR_LEVEL": "SYS"}),
        ("rdma-host", {"NCCL_NET_GDR_LEVEL": "LOC", "NCCL_IB_HCA": "=mlx5_0:1"}),
        ("roce", {"NCCL_IB_HCA": "=mlx5_2:1", "NCCL_IB_DISABLE": "0"}),
        ("ipoib", {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=ib0"}),
        ("tcp", {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eth0,eth1"}),
    ],
)
def test_nccl_is_told_what_the_node_has(name: str, expected: dict[str, str]) -> None:
    entry = transport(name)
    found = nccl_environment(entry, choose_adapters(entry, _PORTS, _INTERFACES))
    assert {key: found[key] for key in expected} == expected
    assert found["NCCL_DEBUG"] == "INFO"


def test_adapters_can_be_chosen() -> None:
    assert choose_adapters(transport("tcp"), _PORTS, _INTERFACES, ["eth1"]) == ("eth1",)
    assert choose_adapters(transport("rdma"), _PORTS, _INTERFACES, ["mlx5_0:1"]) == ("mlx5_0:1",)


def test_virtual_interfaces_are_used_only_when_named() -> None:
    entry = transport("tcp")
    assert choose_adapters(entry, [], _INTERFACES) == ("eth0", "eth1")
    assert choose_adapters(entry, [], _INTERFACES, ["docker0"]) == ("docker0",)


def test_without_gpus_ranks_speak_tcp_only() -> None:
    assert gloo_environment(transport("ipoib"), ["ib0"]) == {"GLOO_SOCKET_IFNAME": "ib0"}
    with pytest.raises(ProtocolMissing, match=r"RDMA needs NCCL on GPUs; .* TCP only"):
        gloo_environment(transport("rdma"), ["mlx5_0:1"])


def test_a_missing_adapter_is_named_with_what_there_is() -> None:
    with pytest.raises(
        ReproError,
        match=r"RDMA needs an active InfiniBand port; this node has mlx5_1:1 \(InfiniBand, down, ",
    ):
        choose_adapters(transport("rdma"), _PORTS[1:2], [])
    with pytest.raises(ReproError, match=r"needs an Ethernet interface among eth9; .* eth0"):
        choose_adapters(transport("tcp"), _PORTS, _INTERFACES, ["eth9"])
    with pytest.raises(ReproError, match=r"this node has no adapter at all"):
        choose_adapters(transport("ipoib"), [], [])


def test_protocols_of_the_testbed_are_those_with_a_rate() -> None:
    assert list(read_protocols()) == ["rdma", "ipoib", "tcp"]
    assert set(read_transports()) == {"rdma", "ipoib", "tcp", "rdma-host", "roce"}


def test_a_log_proves_its_protocol_and_no_other() -> None:
    on_ib = replace(_SOCKETS, interfaces=("ib0",))
    on_host = replace(_VERBS, routes=(replace(_ROUTE, gpudirect=False),))
    on_ethernet = replace(_VERBS, hcas=(Hca("mlx5_2", 1, "Ethernet"),))
    logs = {
        "rdma": _VERBS,
        "rdma-host": on_host,
        "roce": on_ethernet,
        "ipoib": on_ib,
        "tcp": _SOCKETS,
    }
    for name in logs:
        for other, log in logs.items():
            if name == other:
                prove_routes(transport(name), log, _KINDS)
            else:
                with pytest.raises(ReproError, match=transport(name).label):
                    prove_routes(transport(name), log, _KINDS)


def test_an_external_plugin_for_verbs_is_verbs() -> None:
    named = replace(_VERBS, routes=(replace(_ROUTE, network="NCCL RDMA Plugin v10"),))
    prove_routes(transport("rdma"), named, _KINDS)
    log = replace(_VERBS, routes=(replace(_ROUTE, network="IBext_v8"),))
    prove_routes(transport("rdma"), log, _KINDS)


def test_what_nccl_used_instead_is_named() -> None:
    with pytest.raises(ReproError, match=r"requires IB, but NCCL used NET/Socket for 1 routes"):
        prove_routes(transport("rdma"), _SOCKETS, _KINDS)
    half = replace(_VERBS, routes=(_ROUTE, replace(_ROUTE, gpudirect=False)))
    with pytest.raises(ReproError, match=r"requires GPUDirect on, but 1 of 2 routes have it"):
        prove_routes(transport("rdma"), half, _KINDS)
    with pytest.raises(
        ReproError, match=r"requires an IP interface on InfiniBand, .* eth0 \(ethernet"
    ):
        prove_routes(transport("ipoib"), _SOCKETS, _KINDS)
    with pytest.raises(ReproError, match=r"has no route between nodes"):
        prove_routes(transport("rdma"), replace(_VERBS, routes=()), _KINDS)


def test_counters_must_have_seen_the_bytes() -> None:
    prove_bytes(transport("rdma"), "node0", 1e9, {"mlx5_0:1": 1_010_000_000})
    prove_bytes(transport("rdma"), "node0", 1e9, {"mlx5_0:1": 500_000_000, "mlx5_1:1": 510_000_000})
    with pytest.raises(ReproError, match=r"node0 had to send 1000.0 MB .* mlx5_0:1 3.0 MB"):
        prove_bytes(transport("rdma"), "node0", 1e9, {"mlx5_0:1": 3_000_000})
