"""GPUs by what drivers and tables call them, and what drivers say of their memory."""

import pytest

from repro.catalog.systems.gpus import find_gpu_name, gpu, read_gpus
from repro.errors import ReproError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "h100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H200 141GB", "h200-sxm-141gb"),
        ("a100_80gb", "a100-sxm-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100 40GB PCIe", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("mi350x", "mi350x"),
        # A card with a bridge is no board with a switch.
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("NVIDIA H200 NVL", "h200-nvl-141gb"),
        ("h200_nvl", "h200-nvl-141gb"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm-270gb"),
        ("B300", "b300-sxm-270gb"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
        ("h800", "h800-sxm-80gb"),
        ("NVIDIA H20", "h20-sxm-96gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA GB10", "dgx-spark"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_gpus_are_known_by_their_chips_and_words(written: str, name: str) -> None:
    assert find_gpu_name(written) == name


def test_every_gpu_is_called_by_its_own_names() -> None:
    for name, entry in read_gpus().items():
        assert {find_gpu_name(one) for one in (name, entry.label, *entry.published_as)} == {name}


@pytest.mark.parametrize(
    "written",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "A100-SXM-64GB",
        "Tesla V100-PCIE-32GB",
        "Radeon VII",
    ],
)
def test_what_the_file_has_not_is_not_taken_for_another(written: str) -> None:
    wanted = rf"unknown GPU '{written}'; choose from: a100-sxm-80gb, .*, or add it to params/gpus"
    with pytest.raises(ReproError, match=wanted):
        find_gpu_name(written)


@pytest.mark.parametrize(
    ("name", "gib"),
    # Of a GH200, cuDeviceTotalMem returns 153,008,209,920 bytes.
    [("h100-sxm-80gb", 79.18), ("h200-sxm-141gb", 139.80), ("gh200-144gb", 142.50)],
)
def test_memory_is_what_a_driver_says_that_there_is(name: str, gib: float) -> None:
    assert gpu(name).memory_bytes == pytest.approx(gib * 2**30, rel=0.003)
