"""Adapters of a node, in a made-up sysfs."""

from pathlib import Path

import pytest

from repro.observe.adapters import Interface, Port, read_interfaces, read_ports


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    files = {
        "class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand",
        "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        "class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)",
        "class/infiniband/mlx5_1/ports/1/link_layer": "Ethernet",
        "class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
        "class/infiniband/mlx5_1/ports/1/rate": "25 Gb/sec (1X EDR)",
        **_interface("eth0", type=1, operstate="up", speed="10000", device="x"),
        **_interface("ib0", type=32, operstate="up", speed="100000", device="x"),
        **_interface("hsn0", type=1, operstate="up", speed="200000", device="x"),
        **_interface("docker0", type=1, operstate="down", speed="-1"),
        **_interface("lo", type=772, operstate="unknown"),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return tmp_path


def _interface(name: str, **files: object) -> dict[str, str]:
    return {f"class/net/{name}/{file}": str(text) for file, text in files.items()}


def test_ports_have_a_link_layer_a_state_and_a_rate(sys: Path) -> None:
    assert read_ports(sys) == [
        Port("mlx5_0", 1, "InfiniBand", True, 100.0),
        Port("mlx5_1", 1, "Ethernet", False, 25.0),
    ]


def test_interfaces_are_told_apart_by_what_they_are(sys: Path) -> None:
    assert read_interfaces(sys) == [
        Interface("docker0", "ethernet", False, False, None),
        Interface("eth0", "ethernet", True, True, 10.0),
        Interface("hsn0", "slingshot", True, True, 200.0),
        Interface("ib0", "infiniband", True, True, 100.0),
    ]


def test_a_node_without_hcas_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == []


def test_this_machines_interfaces_can_be_read() -> None:
    assert all(one.name != "lo" for one in read_interfaces())
