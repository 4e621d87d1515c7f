"""Lines of `repro doctor` on a GPU node; scripts answer for the driver and Slurm."""

from pathlib import Path

import pytest

from repro import doctor
from repro.catalog.systems.nodes import Nodes, Slurm
from repro.observe.adapters import Interface, Port

pytestmark = pytest.mark.slow

_SMI = """#!/bin/sh
case "$1" in
  -L) echo "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-0)"; echo "GPU 1: NVIDIA A100-PCIE-40GB";;
  topo) printf '\\tGPU0\\tNIC0\\nGPU0\\t X \\tPIX\\n';;
esac
"""
_SINFO = "#!/bin/sh\necho '4 nodes of 64 cores, gpu:2, at most 1-00:00:00, idle'\n"


@pytest.fixture
def gpu_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, script in (("nvidia-smi", _SMI), ("sinfo", _SINFO), ("sbatch", _SINFO)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    ports = [
        Port("mlx5_0", 1, "InfiniBand", True, 100.0),
        Port("mlx5_1", 1, "InfiniBand", False, 100.0),
    ]
    interfaces = [
        Interface("docker0", "ethernet", True, False, None),
        Interface("eno1", "ethernet", True, True, 1.0),
        Interface("eth0", "ethernet", True, True, 10.0),
        Interface("ib0", "infiniband", True, True, 100.0),
    ]
    monkeypatch.setattr(doctor, "read_ports", lambda: ports)
    monkeypatch.setattr(doctor, "read_interfaces", lambda: interfaces)
    slurm = Slurm(partition="gpu", nodes=4, time_limit_min=30)
    nodes = Nodes(
        launch="slurm",
        gpus_per_node=2,
        warmup=1,
        iterations=1,
        adapters={"tcp": ("eth0",)},
        slurm=slurm,
    )
    monkeypatch.setattr(doctor, "read_nodes", lambda: nodes)
    return monkeypatch


def _line_of(what: str) -> str:
    (one,) = (one for one in doctor.examine() if one.capability == what)
    return str(one)


def test_every_protocol_names_its_adapters(gpu_node: pytest.MonkeyPatch) -> None:
    gpu_node.setattr(doctor, "_gpudirect", lambda: "nvidia_peermem")
    assert _line_of("protocol rdma") == "yes  protocol rdma: mlx5_0:1, GPUDirect by nvidia_peermem"
    assert _line_of("protocol ipoib") == "yes  protocol ipoib: ib0"
    assert _line_of("protocol tcp") == "yes  protocol tcp: eth0"
    assert _line_of("protocol roce").startswith("NO   protocol roce: ")


def test_without_gpudirect_a_fix_is_named(gpu_node: pytest.MonkeyPatch) -> None:
    gpu_node.setattr(doctor, "_gpudirect", lambda: "")
    line = _line_of("protocol rdma")
    assert line == (
        "NO   protocol rdma: mlx5_0:1, no GPUDirect; fix: load nvidia_peermem, install the open "
        "driver (DMA-BUF), or use rdma-host"
    )
    assert _line_of("protocol rdma-host") == "yes  protocol rdma-host: mlx5_0:1"


def test_adapters_gpus_topology_and_the_partition_are_there(gpu_node: pytest.MonkeyPatch) -> None:
    assert _line_of("NICs") == (
        "yes  NICs: mlx5_0:1 (InfiniBand, active, 100 Gbit/s), "
        "mlx5_1:1 (InfiniBand, down, 100 Gbit/s), eno1 (ethernet, up, 1 Gbit/s), "
        "eth0 (ethernet, up, 10 Gbit/s), ib0 (infiniband, up, 100 Gbit/s)"
    )
    assert "GPU 0: NVIDIA A100-PCIE-40GB" in _line_of("GPUs")
    assert "partition gpu: 4 nodes of 64 cores, gpu:2, at most 1-00:00:00, idle" in _line_of(
        "Slurm"
    )
    assert any("GPU0\t X \tPIX" in line for line in doctor.connections())
